#pragma once

#include <ATen/core/ivalue.h>

#include <functional>

#include "parallelizers/placement/layout/value.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

// What a call that runs on `stages` makes of a tensor that lies elsewhere. All ranks call these
// alike, and what one refuses all refuse. `operation` is for errors.

/// A value in the same layout, of these stages.
Value on_stages(Value value, const ContextPtr& context, StageSet stages);

/// `value`, the inside of `tensor`, which lies on other stages: the thread's carrier takes it
/// there, or that of the context where no gradients are recorded and no step is under way. Refuses
/// parameters, of which a stage has a copy or does not use them, and anything where nobody carries.
Value carried_to(StageSet stages, const at::Tensor& tensor, Value value, const char* operation);

/// `value`, which lies on several stages and is on several of this rank's: on the one of those that
/// the call runs on. Each has a backward pass of its own, in which the value must not stand twice.
/// What they do with a parameter meets in its gradient.
Value handed_over_to(StageSet stages, const at::Tensor& tensor, Value value);

/// An in-place operator on `stages` is about to write `target`. An ordinary tensor becomes theirs
/// (carrier/graph/adopt.h), a value of other stages moves to them (carrier/graph/move_value.h).
/// What can do neither is refused. (The planner's runs let an ordinary tensor be.)
void bring_target(StageSet stages, const at::Tensor& target, const ContextPtr& context,
                  const char* operation);

/// Throws for an ordinary tensor with a gradient beside values of stages: each of them would give
/// it the gradient of its own uses, and the other ranks none.
void refuse_learnable(const at::Tensor& tensor, const ModelContext& context, StageSet stages,
                      const char* operation);

/// Runs an operator, and tells the thread's carrier before it and behind it which parameters and
/// buffers among its arguments it uses, and which one it writes.
void run_and_tell(bool in_place, c10::ArrayRef<c10::IValue> arguments,
                  const std::function<void()>& run);

/// Throws where an operator on `stages` writes a parameter or buffer, or a view of one, that others
/// hold as well, or alone: these would not see it. Whoever looks for uses notes it.
void check_written_where_held(StageSet stages, const at::Tensor& target, const char* operation);

}  // namespace oslo
