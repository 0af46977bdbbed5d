#include "parallelizers/kernels/linear_kernels.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <atomic>

namespace oslo {
namespace {

std::atomic<MakeLinearKernels>& registered() {
  static std::atomic<MakeLinearKernels> make{nullptr};
  return make;
}

}  // namespace

LinearKernels::Activated LinearKernels::product_and_gelu(const at::Tensor& x,
                                                         const at::Tensor& weight,
                                                         const at::Tensor& bias) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor sum = bias.defined() ? at::addmm(bias, x, weight) : at::mm(x, weight);
  at::Tensor activation = at::gelu(sum, "tanh");
  return {std::move(sum), std::move(activation)};
}

at::Tensor LinearKernels::product_and_gelu_backward(const at::Tensor& gradient,
                                                    const at::Tensor& weight,
                                                    const at::Tensor& sum) {
  const c10::AutoGradMode no_grad(false);
  return at::gelu_backward(at::mm(gradient, weight), sum, "tanh");
}

at::Tensor LinearKernels::weight_gradient(const at::Tensor& into, Into how,
                                          const at::Tensor& gradient, const at::Tensor& x,
                                          bool bias) {
  const c10::AutoGradMode no_grad(false);
  // Of half precision, a product would be rounded before it is added.
  const auto type = into.scalar_type();
  at::Tensor(into).addmm_(gradient.t().to(type), x.to(type), how == Into::adds ? 1 : 0);
  return bias ? gradient.sum(0) : at::Tensor();
}

void set_cuda_linear_kernels(MakeLinearKernels make) {
  registered() = make;
}

std::unique_ptr<LinearKernels> make_linear_kernels() {
  const MakeLinearKernels make = registered();
  return make != nullptr ? make() : std::make_unique<LinearKernels>();
}

}  // namespace oslo
