#include "parallelizers/data/gradient_elements.h"

#include <ATen/ATen.h>

#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

/// Also the gradient of a parameter that is whole may be a placed value.
void take_assigned(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (placed_impl(gradient) == nullptr) return;
  const RuleScope scope("assigned gradient");
  const GradientSharePtr share = gradient_share(parameter);
  const LayoutPtr seen = placed_impl(gradient)->value().layout;
  if (share && over_same_ranks(seen->context(), share->layout->context())) {
    const at::Tensor rows = local_in(gradient, share->layout);
    gradient.reset();
    return give_part(parameter, rows);
  }
  // Of one that has not been exchanged every replica has its own.
  const ParameterLayouts own = layouts_of(parameter);
  const LayoutPtr lies = share ? own.parameter : own.gradient;
  gradient = local_in(gradient, lies);
  if (!lies) return;
  gradient = share ? marked_like(gradient, parameter) : marked_gradient(gradient, parameter);
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
