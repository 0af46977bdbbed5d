#pragma once

#include <ATen/core/stack.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Runs an operator that writes to `out=` as the one that returns its result (of `aten::div.out`,
/// `aten::div.Tensor`), and writes what that gives: a placed tensor has no memory that a kernel
/// could be handed. An ordinary `out` takes the result's sizes, and becomes a value of its pipeline
/// stage, as with `copy_`. Throws where gradients would be recorded, as LibTorch does. False, with
/// nothing done, of an operator that no other is the same as.
bool run_out_variant(const OperatorEntry& op, torch::jit::Stack& stack);

}  // namespace oslo
