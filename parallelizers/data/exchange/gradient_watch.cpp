#include "parallelizers/data/exchange/gradient_watch.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace oslo {

void GradientWatch::add(const at::Tensor& parameter, std::function<void()> then) {
  using torch::autograd::variable_list;
  using torch::autograd::utils::LambdaPostHook;
  auto node = torch::autograd::impl::grad_accumulator(parameter);
  const uintptr_t hook = node->add_post_hook(std::make_unique<LambdaPostHook>(
      [then = std::move(then)](const variable_list& outputs, const variable_list&) {
        then();
        return outputs;
      }));
  hooks_.emplace_back(hook, std::move(node));
}

void GradientWatch::clear() {
  for (const auto& [hook, node] : hooks_) node->del_post_hook(hook);
  hooks_.clear();
}

}  // namespace oslo
