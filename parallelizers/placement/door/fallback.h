#pragma once

#include <ATen/core/stack.h>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Composite operators on placed values: run their definition, whose parts enter the door.
void decompose(const OperatorEntry& op, torch::jit::Stack& stack);

/// The same for an operator that may be a program's own: its definition may turn out to read
/// memory, which a placed tensor has none of. It is gathered then.
void decompose_or_gather(const OperatorEntry& op, torch::jit::Stack& stack);

/// Operators without a rule: correct, not cheap. Gathers, and says so in the model's report.
void gather_without_rule(Call& call);

}  // namespace oslo
