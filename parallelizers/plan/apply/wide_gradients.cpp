#include "parallelizers/plan/apply/wide_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "parallelizers/libtorch/gradient_type.h"

namespace oslo {
namespace {

bool takes_gradients_in_half(const at::Tensor& parameter) {
  return is_half(parameter.scalar_type()) && parameter.is_leaf() && !parameter.is_inference();
}

void widen(const at::Tensor& parameter) {
  // Where the program has set a type, that stays.
  if (!takes_gradients_in_half(parameter) || parameter.grad_dtype() != parameter.scalar_type())
    return;
  const at::Tensor gradient = parameter.grad();
  parameter.mutable_grad().reset();  // LibTorch compares it with the type that is set
  parameter.set_grad_dtype(at::kFloat);
  if (gradient.defined()) parameter.mutable_grad() = gradient.to(at::kFloat);
}

void narrow(const at::Tensor& parameter) {
  if (!takes_gradients_in_half(parameter)) return;
  if (parameter.grad_dtype() == at::kFloat) unset_gradient_type(parameter);
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined()) gradient = gradient.to(parameter.scalar_type());
}

void for_each_parameter(const ModelView& model, void (*change)(const at::Tensor&)) {
  const c10::AutoGradMode no_grad(false);
  for (const ParameterView& parameter : model.parameters()) {
    change(parameter.in_use());
    change(parameter.registered);
  }
}

}  // namespace

void widen_gradients(const ModelView& model) {
  for_each_parameter(model, &widen);
}

void narrow_gradients(const ModelView& model) {
  for_each_parameter(model, &narrow);
}

}  // namespace oslo
