#pragma once

#include <torch/torch.h>

#include <optional>

// Operators as users define them: kernels that read memory, gradients by torch::autograd::Function,
// or one function for all devices. Those with a rule have it before the first test runs.
namespace user_operators {

using torch::Tensor;

/// x (.., K) times weight (K, N); a kernel for CPUs, an Autograd kernel. Rule "..K, KN -> ..N".
Tensor product(const Tensor& x, const Tensor& weight);
/// The same without a rule.
Tensor unruled_product(const Tensor& x, const Tensor& weight);
/// Per row (..), x minus its largest element, and that; all devices, reads memory, no gradient.
/// Rule "..K -> ..K, ..", K whole.
std::tuple<Tensor, Tensor> peaks(const Tensor& x);
/// The same without a rule.
std::tuple<Tensor, Tensor> unruled_peaks(const Tensor& x);
/// The sum of xs, each (.., K), times scale (K) where given; all devices, of LibTorch's operators.
/// Rule "..K, K -> ..K".
Tensor sum_of(const std::vector<Tensor>& xs, const std::optional<Tensor>& scale);
/// Squares; tagged as pointwise, a kernel for CPUs.
Tensor square(const Tensor& x);
/// Cumulated sums backwards along the first dimension; a function on oslo::Call that flips twice.
Tensor sums_from_behind(const Tensor& x);

}  // namespace user_operators
