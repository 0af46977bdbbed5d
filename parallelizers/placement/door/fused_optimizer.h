#pragma once

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Runs an optimizer's step in one operator (`_fused_adamw_` and its like) on this rank's parts:
/// what it computes of an element depends on that element's gradient and states alone. False, with
/// nothing done, where it is another operator. Throws where a gradient or state does not lie as its
/// parameter does.
bool run_fused_optimizer(const OperatorEntry& op, torch::jit::Stack& stack);

}  // namespace oslo
