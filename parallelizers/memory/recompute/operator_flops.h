#pragma once

#include <ATen/core/ivalue.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo::recompute {

/// How many multiplications and additions an operator makes, by the shapes of its arguments and
/// results: products of matrices, convolutions, attention (half of it where it is causal). 0 for
/// all others, which cost as much as the memory that they touch. Of placed tensors the sizes are
/// the global ones, so that all ranks say the same.
double flops_of(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                c10::ArrayRef<c10::IValue> results);

}  // namespace oslo::recompute
