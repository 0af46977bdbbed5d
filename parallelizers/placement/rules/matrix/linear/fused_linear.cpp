#include "parallelizers/placement/rules/matrix/linear/fused_linear.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <optional>
#include <utility>

#include "parallelizers/placement/carrier/graph/gradient_path.h"

namespace oslo {

bool kernels_take(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto type = weight.scalar_type();
  const auto fits = [&](const at::Tensor& each) {
    return each.scalar_type() == type && each.layout() == at::kStrided && !each.is_meta();
  };
  return at::isFloatingType(type) && weight.dim() == 2 && x.dim() >= 2 && weight.numel() > 0 &&
         x.numel() > 0 && fits(x) && fits(weight) &&
         (!bias.defined() || (bias.dim() == 1 && fits(bias)));
}

at::Tensor fused_product(KernelFusion& fusion, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, WeightForm form) {
  // What stands in the graph is the caller's node.
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool output_first = form == WeightForm::output_first;
  at::Tensor sum, activation;
  if (fusion.gelu_follows(weight)) {
    const at::Tensor factor = output_first ? weight.t() : weight;
    auto sizes = x.sizes().vec();
    sizes.back() = factor.size(1);
    auto both = fusion.kernels()->product_and_gelu(x.reshape({-1, x.size(-1)}), factor, bias);
    sum = both.sum.view(sizes);
    activation = both.activation.view(sizes);
  } else {
    sum = at::linear(x, output_first ? weight : weight.t(),
                     bias.defined() ? std::optional(bias) : std::nullopt);
  }
  fusion.computed(sum, weight, std::move(activation));
  return sum;
}

WeightGradients fused_weight_gradients(LinearKernels& kernels, const torch::autograd::Edge& edge,
                                       const at::Tensor& gradient, const at::Tensor& x,
                                       const WeightGradientsOf& of) {
  using Into = LinearKernels::Into;
  const bool output_first = of.form == WeightForm::output_first;
  const auto turned = [&](const at::Tensor& matrix) { return output_first ? matrix : matrix.t(); };
  WeightGradients found;
  const auto compute = [&](const at::Tensor& into, Into how) {
    found.bias = kernels.weight_gradient(into, how, gradient, x, of.bias);
  };
  const bool added =
      add_along(edge, [&](const at::Tensor& so_far) { compute(turned(so_far), Into::adds); });
  if (added) return found;
  const int64_t n = gradient.size(1), k = x.size(1);
  const at::Tensor into = output_first || of.column_major ? at::empty({n, k}, x.options())
                                                          : at::empty({k, n}, x.options()).t();
  compute(into, Into::overwrites);
  found.weight = turned(into);
  return found;
}

}  // namespace oslo
