#include "parallelizers/placement/carrier/whole_gradients.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/VariableHooksInterface.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "mpu/base/ledger.h"
#include "mpu/base/node_ptr.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

using torch::autograd::FunctionPreHook;
using torch::autograd::Node;
using torch::autograd::variable_list;

at::Tensor gathered(at::Tensor gradient) {
  if (!gradient.defined() || placed_impl(gradient) == nullptr) return gradient;
  const RuleScope scope("whole_gradient");
  announce_gather(placed_impl(gradient)->value(), RuleScope::current(),
                  "a gradient that is cut arrives at a tensor that is whole");
  return local_in(std::move(gradient), nullptr);
}

struct GatherPlaced final : FunctionPreHook {
  variable_list operator()(const variable_list& gradients) override {
    variable_list whole = gradients;
    for (at::Tensor& gradient : whole) gradient = gathered(std::move(gradient));
    return whole;
  }
};

/// The same for a leaf, in the form in which users' hooks are kept: one that was set earlier runs
/// before, and a later one after.
struct GatherPlacedOfLeaf {
  at::TensorBase operator()(const at::TensorBase& gradient) const {
    return gathered(at::Tensor(gradient));
  }
};

bool gathers_already(Node& node) {
  const auto& hooks = node.pre_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const GatherPlaced*>(hook.get()) != nullptr;
  });
}

bool gathers_already(const at::Tensor& leaf) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (meta == nullptr || !meta->cpp_hooks_list_) return false;
  return std::any_of(
      meta->cpp_hooks_list_->begin(), meta->cpp_hooks_list_->end(),
      [](const auto& hook) { return hook.template target<GatherPlacedOfLeaf>() != nullptr; });
}

}  // namespace

void gather_gradients_of(c10::ArrayRef<c10::IValue> results) {
  if (!c10::GradMode::is_enabled()) return;
  for_each_tensor(results, [](const at::Tensor& result) {
    if (!result.requires_grad() || result.key_set().has(kPlacedKey)) return;
    const NodePtr& node = result.grad_fn();
    if (node && !gathers_already(*node)) node->add_pre_hook(std::make_unique<GatherPlaced>());
  });
}

void gather_gradients_of_leaf(const at::Tensor& leaf) {
  if (!leaf.requires_grad() || leaf.is_inference() || gathers_already(leaf)) return;
  at::impl::GetVariableHooks()->_register_hook(leaf, GatherPlacedOfLeaf());
}

void release_gradients_of_leaf(const at::Tensor& leaf) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (meta == nullptr || !meta->cpp_hooks_list_) return;
  for (size_t i = 0; i < meta->cpp_hooks_list_->size(); ++i) {
    if ((*meta->cpp_hooks_list_)[i].target<GatherPlacedOfLeaf>() != nullptr) {
      at::impl::GetVariableHooks()->remove_hook(leaf, static_cast<unsigned>(i));
    }
  }
}

}  // namespace oslo
