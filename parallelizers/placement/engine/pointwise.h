#pragma once

#include <ATen/core/stack.h>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Operators that work element by element: operands are aligned from the right, and the result is
/// cut as they are.
void run_pointwise(Call& call);

/// The same of an operator that writes its first operand, which keeps its layout.
void run_pointwise_in_place(Call& call);

/// The map of `operands` aligned from the right.
DimensionMap pointwise_map(c10::ArrayRef<Value> operands);

/// The common case without a Call: operands that lie alike, next to scalars and broadcast plain
/// tensors. Returns false, with the stack unchanged, when it is another case.
bool run_pointwise_fast(const OperatorEntry& op, torch::jit::Stack& stack);

/// Likewise of parts alone, while no gradients are recorded: what optimizers do.
bool run_pointwise_on_parts(const OperatorEntry& op, torch::jit::Stack& stack);

}  // namespace oslo
