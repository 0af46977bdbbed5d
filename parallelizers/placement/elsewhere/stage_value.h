#pragma once

#include <ATen/core/ivalue.h>

#include <c10/util/FunctionRef.h>

#include "parallelizers/placement/layout/value.h"
#include "parallelizers/placement/residency/stage_carrier.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

// What a call that runs on `stages` makes of a tensor that lies elsewhere. All ranks call these
// alike, and what one refuses all refuse. `operation` is for errors.

/// A value in the same layout, of these stages.
Value on_stages(Value value, const ContextPtr& context, StageSet stages);

/// `value`, the inside of `tensor`, which lies on other stages: the thread's carrier takes it
/// there, or that of its residence where no gradients are recorded. Refuses
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
void refuse_learnable(const at::Tensor& tensor, StageSet stages, const char* operation);

/// Who follows the uses of parameters on this thread; null: nobody.
UseFollower* follower();
/// Runs an operator, and tells `follower` before it and behind it which parameters and buffers
/// among its arguments it uses, and which one it writes.
void run_and_tell(UseFollower& follower, bool in_place, c10::ArrayRef<c10::IValue> arguments,
                  c10::function_ref<void()> run);

/// Throws where an operator on `stages` writes a parameter or buffer, or a view of one, that others
/// hold as well, or alone: these would not see it. Whoever looks for uses notes it.
void check_written_where_held(StageSet stages, const at::Tensor& target, const char* operation);

}  // namespace oslo
