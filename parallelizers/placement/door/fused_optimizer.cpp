#include "parallelizers/placement/door/fused_optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

/// _fused_adamw_(self[], grads[], exp_avgs[], .., state_steps[], *, lr, ..)
bool is_fused_optimizer(const OperatorEntry& op) {
  static constexpr std::string_view kFused[] = {"aten::_fused_adam_", "aten::_fused_adamw_",
                                                "aten::_fused_sgd_", "aten::_fused_adagrad_"};
  const std::string_view called = op.name;
  const std::string_view name = called.substr(0, called.find('.'));  // without the overload's
  return std::find(std::begin(kFused), std::end(kFused), name) != std::end(kFused);
}

/// Counted by element, not one number a parameter.
bool is_by_element(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::ListType::ofTensors()) &&
         argument.name() != "state_steps";
}

/// What `tensor` is on this rank beside its parameter, which is marked.
at::Tensor beside(const at::Tensor& parameter, const at::Tensor& tensor, const OperatorEntry& op,
                  const std::string& list) {
  const Mark& mark = *mark_of(parameter);
  if (placed_impl(tensor) != nullptr && list == "grads") return local_in(tensor, mark.layout);
  const Mark* const own = placed_impl(tensor) != nullptr ? nullptr : mark_of(tensor);
  const bool alike = own != nullptr ? *own->layout == *mark.layout
                                    : tensor.sizes() == c10::IntArrayRef(mark.local_sizes);
  OSLO_CHECK(alike && placed_impl(tensor) == nullptr, op.name, ": what ", list, " has for ",
             mark.name, ", of shape ", tensor.sizes(), ", is not cut as the parameter is (",
             mark.layout->to_string(), ", this rank has ", c10::IntArrayRef(mark.local_sizes),
             "); make it like the parameter: torch::zeros_like(p)");
  return tensor;
}

}  // namespace

bool run_fused_optimizer(const OperatorEntry& op, torch::jit::Stack& stack) {
  if (!op.in_place) return false;
  const size_t base = stack.size() - op.arguments;
  if (!stack[base].isTensorList() || !is_fused_optimizer(op)) return false;
  const auto& schema = op.schema->arguments();
  const std::vector<at::Tensor> parameters = stack[base].toTensorVector();
  for (size_t i = 0; i < op.arguments; ++i) {
    if (!stack[base + i].isTensorList() || !is_by_element(schema[i])) continue;
    std::vector<at::Tensor> list = stack[base + i].toTensorVector();
    if (list.size() != parameters.size()) continue;  // none, or LibTorch says so
    for (size_t k = 0; k < list.size(); ++k) {
      if (placed_impl(parameters[k]) != nullptr || mark_of(parameters[k]) == nullptr) continue;
      list[k] = beside(parameters[k], list[k], op, schema[i].name());
    }
    stack[base + i] = std::move(list);
  }
  for (const at::Tensor& parameter : parameters) {
    const Mark* const mark = placed_impl(parameter) != nullptr ? nullptr : mark_of(parameter);
    if (mark != nullptr && c10::InferenceMode::is_enabled()) mark->layout->context()->count_write();
  }
  const BelowDoor below;
  op.handle.callBoxed(&stack);
  return true;
}

}  // namespace oslo
