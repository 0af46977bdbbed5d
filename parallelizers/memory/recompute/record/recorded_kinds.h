#pragma once

#include <ATen/core/ivalue.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo::recompute {

// What a call of an operator means for its segment, beside what its schema says.

/// Whether it is a batch normalization in training, which updates statistics beside its results.
/// Their schemas do not all say so, and count no write.
bool updates_statistics(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);

/// Attention counts as random whether it drops something or not.
bool drops_nothing(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);

/// Whether a program may fill the result by its pointer.
bool makes_memory(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace oslo::recompute
