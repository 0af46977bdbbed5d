#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace oslo {

/// The products of a linear layer, each with what stands beside it in the same pass over memory.
/// This class computes them by LibTorch's operators, on any device: what others are compared with.
/// liboslo_cpp_cuda has one for CUDA tensors, by cuBLASLt's epilogues (cublaslt/).
///
/// All take matrices of one floating type on one device; a transposed one (`w.t()`) is as good.
/// Nothing is recorded for gradients. On a device they run on its current stream, and return before
/// it is done. Any thread may call them at any time. A rank calls them alone: nothing is
/// communicated.
class LinearKernels {
 public:
  virtual ~LinearKernels() = default;

  struct Activated {
    at::Tensor sum;         ///< (m, n): x weight + bias
    at::Tensor activation;  ///< (m, n): gelu(sum, "tanh")
  };
  /// A linear layer and the GeLU behind it: x (m, k), weight (k, n), bias (n) or undefined. In half
  /// precision a kernel may take the GeLU of the sum before that is rounded.
  virtual Activated product_and_gelu(const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& bias);

  /// The way back, from the layer behind that GeLU, y = activation next: the gradient of `sum`
  /// (m, n), by that of y (m, k) and next^T (k, n). The bias's comes of it by `weight_gradient`.
  virtual at::Tensor product_and_gelu_backward(const at::Tensor& gradient, const at::Tensor& weight,
                                               const at::Tensor& sum);

  enum class Into { overwrites, adds };
  /// The gradient of a layer's weight, gradient^T x, of y = x weight^T + bias: gradient (m, n) of
  /// y, x (m, k). `into` (n, k) gets it, or it is added to what `into` holds, without a tensor
  /// between. `into` may be float32 where the others are of half precision; each product is then
  /// added as it is, and not rounded first. Of a weight (k, n), hand in its gradient's `t()`.
  ///
  /// Returns the bias's (n), the sum over the rows of `gradient`; undefined where it is not asked
  /// for.
  virtual at::Tensor weight_gradient(const at::Tensor& into, Into how, const at::Tensor& gradient,
                                     const at::Tensor& x, bool bias);
};

using MakeLinearKernels = std::unique_ptr<LinearKernels> (*)();

/// What liboslo_cpp_cuda says while it is loaded. The kernels that are made from then on take
/// tensors of any device.
void set_cuda_linear_kernels(MakeLinearKernels make);

/// Those of liboslo_cpp_cuda where it is loaded, LibTorch's operators elsewhere.
std::unique_ptr<LinearKernels> make_linear_kernels();

}  // namespace oslo
