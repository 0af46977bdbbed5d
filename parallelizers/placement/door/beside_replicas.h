#pragma once

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Data replicas compute with other values, so that what is cut over them (a weight of which each
/// keeps a part, ModelContext::replica_axis) has no place among these. Alone, without gradients
/// recorded, its parts are computed with as any cut value's: an optimizer's step, a norm. Beside
/// other tensors, and a weight wherever gradients are recorded, it takes part whole.

/// Gathers, in place, the operands of the call on the stack that are to take part whole; such a
/// weight by its bucket (layout/sharded_weight.h). Whether there was one: the call then is another
/// one, which knows nothing of the replicas. Throws where one would be written.
bool gather_beside_replicas(const OperatorEntry& op, torch::jit::Stack& stack);

/// Runs what autocast casts such a weight by, which is a use of it: what it gives is not kept for
/// backward either. `run`: how any call goes on. False, with nothing done, for other calls.
bool cast_beside_replicas(const OperatorEntry& op, torch::jit::Stack& stack,
                          c10::function_ref<void()> run, c10::function_ref<void()> again);

}  // namespace oslo
