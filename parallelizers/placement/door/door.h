#pragma once

#include <ATen/core/stack.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// The one kernel that every operator on a placed or marked tensor enters.
void door(const OperatorEntry& op, torch::jit::Stack& stack);

}  // namespace oslo
