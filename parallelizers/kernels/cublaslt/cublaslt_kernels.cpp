#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "parallelizers/kernels/cublaslt/matmul.h"
#include "parallelizers/kernels/linear_kernels.h"

namespace oslo::cublaslt {
namespace {

/// CUDA's, by cuBLASLt's epilogues (CUDA 13.0, "cublasLtEpilogue_t"; as in NVIDIA's Transformer
/// Engine). What cuBLASLt has no algorithm for, and tensors of other devices, take LibTorch's
/// operators.
class CublasLtKernels final : public LinearKernels {
 public:
  Activated product_and_gelu(const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias) override {
    const c10::AutoGradMode no_grad(false);
    if (x.is_cuda()) {
      const at::Tensor sum = at::empty({x.size(0), weight.size(1)}, x.options());
      const at::Tensor activation = at::empty_like(sum);
      const Beside beside = bias.defined() ? Beside::gelu_of_biased : Beside::gelu;
      if (matmuls_.run({"linear with GeLU", x, weight, activation, false, beside, bias, sum})) {
        return {sum, activation};
      }
    }
    return LinearKernels::product_and_gelu(x, weight, bias);
  }

  at::Tensor product_and_gelu_backward(const at::Tensor& gradient, const at::Tensor& weight,
                                       const at::Tensor& sum) override {
    const c10::AutoGradMode no_grad(false);
    if (gradient.is_cuda()) {
      const at::Tensor back = at::empty({gradient.size(0), weight.size(1)}, gradient.options());
      if (matmuls_.run({"gradient of a linear with GeLU",
                        gradient,
                        weight,
                        back,
                        false,
                        Beside::gelu_backward,
                        {},
                        sum})) {
        return back;
      }
    }
    return LinearKernels::product_and_gelu_backward(gradient, weight, sum);
  }

  at::Tensor weight_gradient(const at::Tensor& into, Into how, const at::Tensor& gradient,
                             const at::Tensor& x, bool bias) override {
    const c10::AutoGradMode no_grad(false);
    if (x.is_cuda() && into.is_cuda()) {
      // cuBLASLt writes a bias's gradient in the type of the result only.
      const bool beside = bias && into.scalar_type() == gradient.scalar_type();
      const at::Tensor sum =
          beside ? at::empty({gradient.size(1)}, gradient.options()) : at::Tensor();
      if (matmuls_.run({"weight gradient",
                        gradient.t(),
                        x,
                        into,
                        how == Into::adds,
                        beside ? Beside::left_summed_along_rows : Beside::nothing,
                        sum,
                        {}})) {
        if (!into.is_inference()) into.unsafeGetTensorImpl()->bump_version();
        return bias && !beside ? gradient.sum(0) : sum;
      }
    }
    return LinearKernels::weight_gradient(into, how, gradient, x, bias);
  }

 private:
  Matmuls matmuls_;
};

/// LibTorch registers its own operators in the same way.
[[maybe_unused]] const bool kRegistered = [] {
  set_cuda_linear_kernels(
      []() -> std::unique_ptr<LinearKernels> { return std::make_unique<CublasLtKernels>(); });
  return true;
}();

}  // namespace
}  // namespace oslo::cublaslt
