#pragma once

#include "parallelizers/pipeline/crossing/forward_writes.h"

namespace oslo {

/// What a schedule with several stages a rank has to know of a forward.
struct ForwardNeeds {
  /// Whether a forward that looks at a value of a later stage of the rank stands there, or is left
  /// and taken up later (ForwardOrder).
  bool stands_at_reads = false;
  /// What the forward writes of the model.
  ForwardWrites writes = {};
};

}  // namespace oslo
