#pragma once

#include <ATen/core/stack.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// What optimizers, initializers, gradient buckets and `module.to()` do with marked tensors happens
/// on this rank's part alone, at the speed of an ordinary tensor:
///   - in-place and out= pointwise operators whose tensors are parts of one layout, plain tensors
///     of the local shape, or scalars;
///   - copies, casts and empty or constant tensors "like" a marked one, which are marked in turn.
/// Everything else on a marked tensor is an operator on the whole that it is a part of. Returns
/// false, with the stack unchanged, when the call is of that kind.
bool run_on_parts(const OperatorEntry& op, torch::jit::Stack& stack);

/// Whether an ordinary tensor among these arguments has the sizes of some rank's part, which takes
/// it for one: a row beside parts of 2, 2 and 1 rows. It means the same on that rank as the whole
/// does on the others, and nothing moves, but ranks cannot be compared in such a call. The same
/// answer on every rank.
bool some_rank_runs_on_parts(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace oslo
