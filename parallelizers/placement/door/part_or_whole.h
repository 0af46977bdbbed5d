#pragma once

#include <ATen/core/stack.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// An ordinary tensor of a part's sizes is taken for a part. Where one rank's part is everything,
/// fewer rows than ranks, that rank cannot tell a part from a whole, such as the sums that an
/// Adagrad made before initialize: the others tell it.
///
/// Whether an operator on parts, whose arguments are on the stack from `base` on, writes an
/// ordinary tensor that stands for the whole though this rank could take it for a part. Collective
/// where some rank holds all of a parameter that is read (an exchange of a number over each axis
/// that cuts it), and the same on all ranks then. Throws, on all of them, where parts and wholes
/// are mixed.
bool stands_for_whole(const OperatorEntry& op, const torch::jit::Stack& stack, size_t base);

}  // namespace oslo
