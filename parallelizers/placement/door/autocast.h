#pragma once

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Under autocast, casts the arguments as LibTorch does for this operator, then runs it through the
/// door again with autocast off. The door lies above autocast: what a rule or a decomposition is
/// made of has other casts than the operator itself (addmm's bias, a composite convolution). False,
/// with nothing done, when autocast is off or says nothing about the operator.
bool run_under_autocast(const OperatorEntry& op, torch::jit::Stack& stack);

}  // namespace oslo
