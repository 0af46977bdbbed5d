#pragma once

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// The value in another layout (null: whole). Differentiable; axes that agree move nothing, a
/// dimension that an axis cuts otherwise exchanges what has another owner (recut.h), and the rest
/// is gathered and cut again. A target on another mesh that holds the value's, or lies within it,
/// is taken as it lies on the larger one (other_mesh.h); others are refused.
Value redistribute(Value value, const LayoutPtr& target);

}  // namespace oslo
