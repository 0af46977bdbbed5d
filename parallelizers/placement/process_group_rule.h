#pragma once

#include <string>

#include "parallelizers/placement/operator_entry.h"

namespace oslo {

/// The rule of LibTorch's operators that move memory between ranks (`group->allreduce({p.grad()})`
/// enters the dispatcher as c10d::allreduce_); null for every other operator. On a marked tensor
/// they act on what this rank holds of it, in place, as on an ordinary tensor: all ranks of a
/// data-parallel group hold the same part. Refused by name: activations, which have no memory of
/// their shape; sums and broadcasts over ranks that hold other parts; operators on group names.
Rule process_group_rule(const std::string& name);

}  // namespace oslo
