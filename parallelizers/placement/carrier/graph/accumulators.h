#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torch::autograd {
struct Node;
}

namespace oslo {

/// The parameters (and other leaves) that a backward pass of `loss`, an ordinary tensor, would give
/// gradients to, each with the node where these arrive. Walks the graph once, as far as it is on
/// this rank.
void for_each_accumulator(
    const at::Tensor& loss,
    const std::function<void(const at::Tensor& parameter, const torch::autograd::Node& node)>& see);

}  // namespace oslo
