#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <functional>

namespace oslo {

/// For a node of the backward pass that runs: whether it passes `node`, and nobody looks at the
/// gradient that arrives there or leaves it (hooks, retained gradients, autograd::grad). What it
/// would compute may then be computed elsewhere.
bool only_passes(torch::autograd::Node& node);

/// Of a node that runs in a backward pass and computes what `edge` is to get: where the edge leads
/// to a marked parameter and to nothing else, by way of `t()` at most, calls `add` with the
/// parameter's gradient so far, turned as the edge's is. The node then hands nothing to the edge.
///
/// False, and nothing was called, where the gradient itself is wanted: hooks and captures
/// (autograd::grad) on the way, create_graph, a parameter that has no gradient yet (add_to_gradient
/// in accumulate_marked.h), or whose gradient is written on another stream of the device.
bool add_along(const torch::autograd::Edge& edge,
               const std::function<void(const at::Tensor& gradient)>& add);

}  // namespace oslo
