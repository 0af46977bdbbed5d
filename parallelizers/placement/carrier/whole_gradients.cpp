#include "parallelizers/placement/carrier/whole_gradients.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "mpu/ledger.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/key.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

using torch::autograd::FunctionPreHook;
using torch::autograd::Node;
using torch::autograd::variable_list;

struct GatherPlaced final : FunctionPreHook {
  variable_list operator()(const variable_list& gradients) override {
    variable_list whole = gradients;
    for (at::Tensor& gradient : whole) {
      if (!gradient.defined() || placed_impl(gradient) == nullptr) continue;
      const RuleScope scope("whole_gradient");
      gradient = local_in(std::move(gradient), nullptr);
    }
    return whole;
  }
};

bool gathers_already(const std::vector<std::unique_ptr<FunctionPreHook>>& hooks) {
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const GatherPlaced*>(hook.get()) != nullptr;
  });
}

}  // namespace

void gather_gradients_of(c10::ArrayRef<c10::IValue> results) {
  if (!c10::GradMode::is_enabled()) return;
  for_each_tensor(results, [](const at::Tensor& result) {
    if (!result.requires_grad() || result.key_set().has(kPlacedKey)) return;
    const std::shared_ptr<Node>& node = result.grad_fn();
    if (node && !gathers_already(node->pre_hooks()))
      node->add_pre_hook(std::make_unique<GatherPlaced>());
  });
}

void gather_gradients_of_leaf(const at::Tensor& leaf) {
  if (leaf.is_inference()) return;
  const auto* const meta = torch::autograd::impl::get_autograd_meta(leaf);
  if (meta != nullptr && gathers_already(meta->hooks_)) return;
  torch::autograd::impl::add_hook(leaf, std::make_unique<GatherPlaced>());
}

}  // namespace oslo
