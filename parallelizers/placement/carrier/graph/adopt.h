#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Prepares what an in-place operator is about to write. An ordinary tensor into which a value is
/// written that only some pipeline stages hold becomes theirs, in place: what is read of it later
/// is read there. So does the tensor that it is a view of. Other views that were taken before lose
/// their memory on the ranks of other stages, and say so when they are used. Throws, on every rank,
/// where the target lives on other stages than those that run the operator. Every rank calls it
/// before the write.
void adopt_target(const at::Tensor& target, const ContextPtr& context, StageSet stages,
                  const char* operation);

/// Whether views of a marked tensor follow it in the graph, and it follows them: it has become
/// theirs so, or is a copy of a parameter (`clone()`) whose gradient is recorded. It is no
/// parameter or buffer, nor a gradient of one.
bool is_adopted(const at::Tensor& marked);

}  // namespace oslo
