#include "parallelizers/placement/carrier/whole_gradients.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

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

bool gathers_already(Node& node) {
  const auto& hooks = node.pre_hooks();
  return !hooks.empty() && dynamic_cast<const GatherPlaced*>(hooks.back().get()) != nullptr;
}

}  // namespace

void gather_gradients_of(c10::ArrayRef<c10::IValue> results) {
  if (!c10::GradMode::is_enabled()) return;
  for_each_tensor(results, [](const at::Tensor& result) {
    if (!result.requires_grad() || result.key_set().has(kPlacedKey)) return;
    const std::shared_ptr<Node>& node = result.grad_fn();
    if (node && !gathers_already(*node)) node->add_pre_hook(std::make_unique<GatherPlaced>());
  });
}

}  // namespace oslo
