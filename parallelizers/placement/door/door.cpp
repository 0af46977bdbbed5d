#include "parallelizers/placement/door/door.h"

#include <ATen/core/enum_tag.h>

#include <optional>

#include "mpu/base/foreign_scope.h"
#include "mpu/group/rank_check.h"
#include "parallelizers/libtorch/key_fallback.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/door/autocast.h"
#include "parallelizers/placement/door/autocast_of_shapes.h"
#include "parallelizers/placement/door/beside_replicas.h"
#include "parallelizers/placement/door/fallback.h"
#include "parallelizers/placement/door/fused_optimizer.h"
#include "parallelizers/placement/door/out_variant.h"
#include "parallelizers/placement/door/part_operators.h"
#include "parallelizers/placement/door/written_weights.h"
#include "parallelizers/placement/elsewhere/stage_value.h"
#include "parallelizers/placement/engine/gradient_number.h"
#include "parallelizers/placement/engine/joined_sum.h"
#include "parallelizers/placement/engine/pointwise.h"
#include "parallelizers/placement/engine/stage_draw.h"
#include "parallelizers/placement/engine/stage_read.h"
#include "parallelizers/placement/layout/gather_watch.h"
#include "parallelizers/placement/operators/call_observer.h"
#include "parallelizers/placement/operators/operator_tap.h"
#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo {
namespace {

enum class Met { nothing, marked, placed };

Met look_at(const at::Tensor& tensor) {
  if (!tensor.key_set().has(kPlacedKey)) return Met::nothing;
  return placed_impl(tensor) != nullptr ? Met::placed : Met::marked;
}

/// Where nothing is cut, and this rank holds everything, the operator is LibTorch's own: a rule may
/// have steps that give other bits.
bool run_whole(Call& call) {
  const OperatorEntry& op = call.op();
  if (!call.context()->follows() || call.place().elsewhere) return false;
  if (op.in_place || op.writes_out || op.view || op.user_rule) return false;
  c10::SmallVector<at::Tensor, 4> local;
  for (const Value& operand : call.operands()) {
    if (operand.cut() || !operand.use.empty()) return false;
    local.push_back(operand.local);
  }
  for (c10::IValue& returned : call.call_below(local)) {
    if (returned.isTensor() && returned.toTensor().defined()) {
      call.result({std::move(returned).toTensor(), nullptr});
    } else if (returned.isTensorList()) {
      std::vector<Value> list;
      for (at::Tensor& tensor : returned.toTensorVector()) list.push_back({tensor, nullptr});
      call.result(std::move(list));
    } else {
      call.result_plain(std::move(returned));
    }
  }
  return true;
}

void run_own_rule(Call& call) {
  const OperatorEntry& op = call.op();
  if (op.adds && run_joined(call)) return;
  if (run_whole(call)) return;
  if (op.rule != nullptr) {
    op.rule(call);
  } else if (op.pointwise && !op.writes_out) {
    run_pointwise(call);
  } else {
    gather_without_rule(call);
  }
}

void run_rule(Call& call) {
  if (reads_for_all(call)) return read_for_all(call, [&] { run_own_rule(call); });
  if (draws_for_all(call)) return draw_for_all(call, [&] { run_own_rule(call); });
  run_own_rule(call);
}

/// Where shapes do not tell what the operator gives, as it has no kernel for them or autocast has
/// none, it runs on zeros.
void run_or_restart(Call& call) {
  std::optional<AutocastMet> autocast;
  if (may_autocast_shapes(call)) autocast.emplace();
  const auto tells_types = [&] { return !autocast || !autocast->any(); };
  try {
    run_rule(call);
    if (tells_types()) return;
  } catch (const c10::NotImplementedError&) {
    if (call.place().on_zeros || !call.place().elsewhere) throw;
  } catch (const c10::Error&) {
    if (tells_types()) throw;
  }
  autocast.reset();
  call.restart_on_zeros();
  run_rule(call);
}

/// What no rank holds more of than another must be the same on all of them. What an operator writes
/// to may be memory that nobody wrote before, and so may be what a process group's collective does.
void check_plain_operands(const Call& call) {
  if (call.op().between_ranks) return;
  const Mesh& mesh = call.context()->mesh();
  for_each_tensor(call.arguments().slice(call.op().in_place ? 1 : 0),
                  [&](const at::Tensor& tensor) {
                    if (look_at(tensor) != Met::nothing) return;
                    for (int axis = 0; axis < mesh.axes(); ++axis) {
                      if (axis == call.context()->replica_axis) continue;
                      check_same_on_ranks(tensor, *mesh.axis(axis), "an operand");
                    }
                  });
}

void run(const OperatorEntry& op, torch::jit::Stack& stack) {
  const RuleScope scope(op.name.c_str());
  const bool of_kernel = op.writes_out && op.rule == nullptr && !op.composite;
  if (of_kernel && run_out_variant(op, stack)) return;
  if (op.rule == nullptr && !op.pointwise && op.composite) {
    const c10::ArrayRef<c10::IValue> arguments(stack);
    const auto own = arguments.slice(stack.size() - op.arguments);
    const ContextPtr context = context_of(own);
    if (context) context->check_not_ended();
    const CallObserver::Scope observed(context ? context->observer.get() : nullptr, op, own);
    decompose_or_gather(op, stack);
    return;
  }
  Call call(op, stack);
  call.context()->check_not_ended();
  const CallObserver::Scope observed(call.context()->observer.get(), op, call.arguments());
  std::optional<RankCheckScope> not_compared;
  if (checks_ranks()) {
    if (some_rank_runs_on_parts(op, call.arguments())) {
      not_compared.emplace(false);
    } else {
      check_plain_operands(call);
    }
  }
  refuse_own_generator(call);
  const bool from_gradients = computes_from_gradients(call);
  const AutocastOfParts autocast(op, call.arguments());
  const ForeignScope foreign(call.place().elsewhere && call.residence()->imagined() == nullptr);
  try {
    run_or_restart(call);
  } catch (const ShapeMismatch&) {
    call.check_shapes();  // throws the operator's own message
    throw;
  }
  if (from_gradients) note_from_gradients(call);
  call.finish();
}

/// Outside a step of a model on stages a value may be of gradients (gradient_number.h).
bool may_be_from_gradients(c10::ArrayRef<c10::IValue> arguments) {
  if (StageCarrier::current() != nullptr) return false;
  for (const c10::IValue& argument : arguments) {
    const auto* impl = argument.isTensor() ? placed_impl(argument.toTensor()) : nullptr;
    const Layout* const layout = impl == nullptr ? nullptr : impl->layout().get();
    if (layout != nullptr && layout->resident() && layout->context()->residence() != nullptr &&
        layout->context()->residence()->from_gradients() != nullptr) {
      return true;
    }
  }
  return false;
}

/// On one rank, whose parameters are marked so that their uses are met, operators are LibTorch's
/// own, bit for bit. False, with nothing done, where there are others.
bool run_alone(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t first = stack.size() - op.arguments;
  const c10::ArrayRef<c10::IValue> arguments = c10::ArrayRef<c10::IValue>(stack).slice(first);
  const ContextPtr context = context_of(arguments);
  if (!context || context->residence() != nullptr || context->follows()) return false;
  for (int axis = 0; axis < context->mesh().axes(); ++axis) {
    if (context->mesh().axis(axis)->size() > 1) return false;
  }
  if (op.writes_out || op.changes_data || op.handle.hasTag(at::Tag::inplace_view)) return false;
  const c10::IValue target = stack[first];
  // What is recorded of a write has to reach the copy, and its views.
  const bool writable = (op.in_place || op.view) && target.isTensor();
  if (writable && target.toTensor().defined() && is_adopted(target.toTensor())) return false;
  for (size_t i = first; i < stack.size(); ++i) {
    stack[i] = with_tensors_in(stack[i], [](const at::Tensor& tensor) {
      const Mark* const mark = mark_of(tensor);
      return mark == nullptr ? tensor : value_of_marked(tensor, *mark).local;
    });
  }
  const BelowDoor below;
  op.handle.callBoxed(&stack);
  if (op.in_place) stack.back() = target;
  return true;
}

}  // namespace

void door(const OperatorEntry& op, torch::jit::Stack& stack) {
  // A view (detach, to) has more to remember than its place: what it is a view of.
  const bool fresh = !op.in_place && !op.writes_out && !op.view;
  const c10::ArrayRef<c10::IValue> all(stack);
  const auto arguments = all.slice(stack.size() - op.arguments);
  if (op.autocasts && run_under_autocast(op, stack)) return;
  const bool fast = op.pointwise && fresh && !may_be_from_gradients(arguments);
  if (fast && run_pointwise_fast(op, stack)) return;
  Met met = Met::nothing;
  for (size_t i = stack.size() - op.arguments; i < stack.size() && met != Met::placed; ++i) {
    for_each_tensor_in(stack[i],
                       [&](const at::Tensor& tensor) { met = std::max(met, look_at(tensor)); });
  }
  if (met == Met::nothing) {
    const BelowDoor below;
    op.handle.callBoxed(stack);
    return;
  }
  // Computed first, since what it computes of may be read whole, and others wait for a write.
  if (op.writes_out && writes_sharded(op, arguments) && run_out_variant(op, stack)) return;
  const WrittenWeights written(op, arguments);
  UseFollower* const uses = follower();
  if (uses == nullptr && run_pointwise_on_parts(op, stack)) return;
  const auto run_met = [&] {
    if (take_kept_cast(op, stack)) return;
    if (met == Met::marked && run_on_parts(op, stack)) return;
    if (gather_beside_replicas(op, stack)) return door(op, stack);
    if (met == Met::marked && run_alone(op, stack)) return;
    run(op, stack);
  };
  const auto run_it = [&] {
    if (run_fused_optimizer(op, stack)) return;
    if (!cast_beside_replicas(op, stack, run_met, [&] { door(op, stack); })) run_met();
  };
  if (uses == nullptr) return run_it();
  const c10::ArrayRef<c10::IValue> own(stack);
  run_and_tell(*uses, op.in_place, own.slice(stack.size() - op.arguments), run_it);
}

namespace {

/// Tells those who follow them of the parameters that the program is about to compute with.
void tell_of_parameters(const OperatorEntry& op, const torch::jit::Stack& stack) {
  const auto arguments = c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - op.arguments);
  for (const c10::IValue& argument : arguments) {
    for_each_tensor_in(argument, [&](const at::Tensor& tensor) {
      if (look_at(tensor) != Met::marked) return;
      const Mark* const mark = mark_of(tensor);
      if (mark == nullptr) return;
      const ContextPtr& context = mark->layout->context();
      if (const auto watch = context->gather_watch) watch->about_to_use(mark->name);
      // It may be taken away meanwhile.
      const std::shared_ptr<CallObserver> observer = context->observer;
      if (observer) observer->about_to_use(tensor, arguments);
    });
  }
}

void enter(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorEntry& op = entry_of(handle);
  const bool of_program = !OperatorTap::Lifted::active() && !is_inside_autocast();
  if (of_program) tell_of_parameters(op, *stack);
  if (OperatorTap* const tap = OperatorTap::current()) return tap->run(op, keys, *stack);
  door(op, *stack);
}

const KeyFallback entrance(kPlacedKey, torch::CppFunction::makeFromBoxedFunction<&enter>());

}  // namespace

}  // namespace oslo
