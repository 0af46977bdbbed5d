#include "parallelizers/placement/engine/pointwise.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include <utility>

#include "mpu/group/rank_check.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/alike.h"
#include "parallelizers/placement/engine/global_strides.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/engine/kernel_fusion.h"

namespace oslo {
namespace {

/// The GeLU that a product computed beside its sum; undefined where none did.
at::Tensor ready_gelu(const OperatorEntry& op, const torch::jit::Stack& stack,
                      const PlacedTensorImpl& sum) {
  if (!op.gelu) return {};
  const Value& value = sum.value();
  KernelFusion* const fusion = value.layout->context()->fusion.get();
  if (fusion == nullptr || stack.back().toStringRef() != "tanh") return {};
  at::Tensor activation = fusion->take_gelu(value.local);
  return activation.defined() ? recorded_gelu(value.local, std::move(activation)) : activation;
}

/// Whether all tensors among the arguments are the case that `alike` recognizes. Lists are none.
template <typename Case>
bool takes_all(Case& alike, const torch::jit::Stack& stack, size_t base) {
  for (size_t i = base; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      if (!alike.take(stack[i].toTensor())) return false;
    } else if (stack[i].isTensorList() || stack[i].isOptionalTensorList()) {
      return false;
    }
  }
  return true;
}

/// Puts this rank's parts in the place of placed arguments. Returns those, which own the parts.
c10::SmallVector<c10::IValue, 2> put_parts(torch::jit::Stack& stack, size_t base) {
  c10::SmallVector<c10::IValue, 2> held;
  for (size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) continue;
    const PlacedTensorImpl* const impl = placed_impl(stack[i].toTensor());
    if (impl == nullptr) continue;
    c10::IValue part(impl->value().local);
    held.push_back(std::exchange(stack[i], std::move(part)));
  }
  return held;
}

/// Whether a write to `target` concerns no other tensor's value or place in the graph, while no
/// gradients are recorded.
bool is_written_alone(const at::Tensor& target) {
  if (!target.key_set().has(kPlacedKey)) return false;
  const PlacedTensorImpl* const impl = placed_impl(target);
  const GraphPlace* const place = impl != nullptr ? GraphPlace::find(*impl) : nullptr;
  return place == nullptr ||
         !(place->requires_grad() || place->views_leaf() || place->base().defined());
}

}  // namespace

DimensionMap pointwise_map(c10::ArrayRef<Value> operands) {
  int64_t dims = 0;
  for (const Value& operand : operands) dims = std::max(dims, operand.dim());
  const std::string all = letters(dims);
  DimensionMap map;
  map.results = {all};
  // Where all have one element nothing stretches, and a cut (one row over two ranks) may stay.
  c10::SmallVector<int64_t, 6> longest(dims, 1);
  for (const Value& operand : operands) {
    for (int64_t d = 0; d < operand.dim(); ++d) {
      if (operand.size(d) != 1) longest[dims - operand.dim() + d] = operand.size(d);
    }
  }
  for (const Value& operand : operands) {
    const int64_t missing = dims - operand.dim();
    std::string own = all.substr(missing);
    for (int64_t d = 0; d < operand.dim(); ++d) {
      if (operand.size(d) == 1 && longest[missing + d] != 1) own[d] = '-';
    }
    map.operands.push_back(std::move(own));
  }
  return map;
}

void run_pointwise_in_place(Call& call) {
  run_in_place(call, pointwise_map);
}

void run_pointwise(Call& call) {
  if (call.op().in_place) {
    run_pointwise_in_place(call);
  } else {
    call.run(pointwise_map(call.operands()));
  }
}

bool run_pointwise_fast(const OperatorEntry& op, torch::jit::Stack& stack) {
  Alike alike;
  const size_t base = stack.size() - op.arguments;
  if (!takes_all(alike, stack, base)) return false;
  if (!alike.holds()) return false;
  if (!alike.order_is_first()) return false;
  if (asks_for_order(op, c10::ArrayRef<c10::IValue>(&stack[base], op.arguments))) return false;
  if (op.same_weight && alike.first().weight_uses()) return false;
  if (at::Tensor ready = ready_gelu(op, stack, alike.first()); ready.defined()) {
    torch::jit::drop(stack, op.arguments);
    stack.emplace_back(wrap_like({std::move(ready), alike.first().value().layout}, alike.first()));
    return true;
  }
  const auto held = put_parts(stack, base);
  // No argument has the placed key any more: the call passes the door by itself.
  op.handle.callBoxed(&stack);
  for (size_t i = base; i < stack.size(); ++i) {
    stack[i] =
        wrap_like({std::move(stack[i]).toTensor(), alike.first().value().layout}, alike.first());
  }
  return true;
}

bool run_pointwise_on_parts(const OperatorEntry& op, torch::jit::Stack& stack) {
  if (!op.only_pointwise || op.rule != nullptr || c10::GradMode::is_enabled()) return false;
  if (checks_ranks() || c10::InferenceMode::is_enabled()) return false;
  AlikeParts alike;
  const size_t base = stack.size() - op.arguments;
  const c10::IValue target = stack[base];
  if (op.in_place && !is_written_alone(target.toTensor())) return false;
  if (!takes_all(alike, stack, base)) return false;
  if (asks_for_order(op, c10::ArrayRef<c10::IValue>(&stack[base], op.arguments))) return false;
  const auto held = put_parts(stack, base);
  const BelowDoor below;
  op.handle.callBoxed(&stack);
  if (op.in_place) {
    if (auto* const impl = placed_impl(target.toTensor())) impl->bump_version();
    stack.back() = target;
    return true;
  }
  Value value{std::move(stack.back()).toTensor(), alike.layout()};
  const bool like = alike.placed() != nullptr && value.stays_placed();
  stack.back() = like ? wrap_like(std::move(value), *alike.placed()) : wrap(std::move(value));
  return true;
}

}  // namespace oslo
