#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// How a weight of N output and K input features lies.
enum class WeightForm {
  output_first,  ///< (N, K): torch::nn::Linear
  input_first,   ///< (K, N): the second operand of matmul and addmm
};

/// x (.., K) times a weight, plus bias (N; undefined: none): a linear layer on this rank's parts,
/// with LibTorch's values bit for bit. Its backward is two nodes, one for the gradient of x and one
/// for those of weight and bias, so that
///   - where x was copied or gathered for this product, and overlap pays, the collective that
///     backward does for x runs while the weight's gradient is computed (start_in_backward);
///   - in a SplitBackward::Scope the second belongs to the weight half, where weight and bias are
///     parameters, or these transposed or cast.
/// Differentiable twice. Operands that have no such backward (complex, sparse, of other shapes) are
/// LibTorch's own at::linear, at::addmm or at::matmul.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          WeightForm form);

}  // namespace oslo
