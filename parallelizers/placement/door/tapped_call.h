#pragma once

#include "parallelizers/placement/operators/operator_tap.h"

namespace oslo {

/// For taps. An operator that is defined by others, or that autocast casts the arguments of, is run
/// by these, each of which comes to the tap; false, with nothing done, where it is one by itself.
/// Operators that meet a placed or marked tensor are: they have rules, whatever defines them.
bool run_by_definition(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

/// For taps. Runs one operator the usual way, with the tap lifted.
void run_lifted(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

}  // namespace oslo
