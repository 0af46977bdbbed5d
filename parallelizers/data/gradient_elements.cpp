#include "parallelizers/data/gradient_elements.h"

#include <ATen/ATen.h>

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

/// Also the gradient of a parameter that is whole may be a placed value.
void take_assigned(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (placed_impl(gradient) == nullptr) return;
  const RuleScope scope("assigned gradient");
  const LayoutPtr lies = layouts_of(parameter).gradient;
  gradient = local_in(gradient, lies);
  if (lies) gradient = marked_gradient(gradient, parameter);
}

}  // namespace

at::Tensor gradient_elements(const at::Tensor& parameter) {
  take_assigned(parameter);
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.is_sparse()) return gradient;
  gradient = gradient.coalesce();
  return gradient._values();
}

}  // namespace oslo
