#pragma once

#include <torch/torch.h>

#include <atomic>

#include "parallelizers/kernels/linear_kernels.h"

namespace oslo::test {

/// Calls of the kernels, of all ranks together.
struct KernelCalls {
  std::atomic<int> gelu = 0, gelu_backward = 0, overwrites = 0, adds = 0;
  /// By so much of itself an activation that a product computes is another than LibTorch's, as in
  /// half precision, where the sum is not rounded before.
  std::atomic<double> rounding = 0;

  void clear() {
    gelu = gelu_backward = overwrites = adds = 0;
    rounding = 0;
  }
};
KernelCalls& kernel_calls();

/// Linear layers and GeLUs in the ways in which LibTorch's users write them: as one operator on
/// (.., C), as nn::Linear on matrices (addmm), as nn::Linear on more dimensions (a product, then a
/// bias in place) with the other GeLU, and on the rows of a view, as GPT-2's Conv1D does.
struct MlpImpl : torch::nn::Module {
  MlpImpl();
  torch::Tensor forward(torch::Tensor x);

  torch::nn::Linear up_one{nullptr}, down_one{nullptr};
  torch::nn::Linear up_two{nullptr}, down_two{nullptr};
  torch::nn::Linear up_three{nullptr}, down_three{nullptr};
  torch::nn::Linear up_four{nullptr}, down_four{nullptr};
};
TORCH_MODULE(Mlp);

/// Those of an Mlp, and how many of its activations a kernel computes with the product.
inline constexpr int kLayers = 8, kGelus = 3;

/// Column and row layers of `Mlp` over `tensor` ranks, with kernel fusion.
std::string fused_config(int tensor, bool fusion = true);

torch::Tensor gelu_tanh(const torch::Tensor& x);
torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x);
/// addmm on x as a matrix, in the shape of x again.
torch::Tensor on_rows(const torch::nn::Linear& layer, const torch::Tensor& x);

}  // namespace oslo::test
