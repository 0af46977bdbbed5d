#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "mpu/group.h"

namespace oslo {

/// Replaces the gradients of `parameters` by their averages over `group`, whose ranks hold copies
/// of them (or the same parts), in flat buckets: one all-reduce for each of about 25 MB and each
/// type. A rank whose gradient is undefined counts as zeros; where it is undefined on all ranks it
/// stays so. Parameters that require no gradient, and those that another pipeline stage holds, are
/// passed over. Collective over the group with the same list. In a group of one rank nothing
/// happens. Throws for a sparse gradient, naming the fix.
void average_gradients(Group& group, const std::vector<at::Tensor>& parameters);

}  // namespace oslo
