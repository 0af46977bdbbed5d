#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "mpu/base/node_ptr.h"
#include "parallelizers/placement/layout/layout.h"

namespace torch::autograd {
struct Node;
}

namespace oslo {

class ShardedWeight;

/// Where the gradients of a marked parameter arrive, in the place of LibTorch's AccumulateGrad. It
/// takes gradients of the whole parameter: placed ones from our own graph, and those that a user's
/// autograd::Function computes when the parameter itself is handed to it. LibTorch's accumulator
/// would hold those against the local shape: an error, or, where this rank's part has one row, a
/// silent sum. Keeps no reference to the parameter, whose mark owns it.
/// `mark`: tells an implementation over the memory of a gradient that it is one of `parameter`;
/// null: it gets the parameter's mark.
using MarkOfGradient = void (*)(c10::TensorImpl& gradient, const at::Tensor& parameter);
/// `sharded`: of a weight that data replicas have parts of.
NodePtr make_accumulator(const at::Tensor& parameter, const LayoutPtr& layout,
                         MarkOfGradient mark = nullptr,
                         const std::shared_ptr<ShardedWeight>& sharded = nullptr);

/// Whether a node was made by `make_accumulator`.
bool takes_whole_gradients(const torch::autograd::Node& node);
/// Whether it was made for this tensor.
bool accumulates_for(const torch::autograd::Node& node, const at::Tensor& tensor);
/// The parameter that it was made for; undefined of other nodes, and where that is gone.
at::Tensor accumulated_parameter(const torch::autograd::Node& node);

/// Lets a node that computes a gradient of this rank's part add it to the parameter's `.grad`
/// itself, so that no tensor stands between: calls `add` with the gradient so far, a plain tensor
/// over its memory. False, and nothing was called, where that would be noticed: no dense gradient
/// is there yet, hooks (a user's, a data-parallel reducer's) wait at the accumulator `node`, or
/// other gradients are added on another stream of the device than the current one.
bool add_to_gradient(torch::autograd::Node& node,
                     const std::function<void(const at::Tensor& gradient)>& add);

/// Gives a gradient its parameter's mark, in place. One that is marked or sparse stays as it is.
void mark_gradient(const at::Tensor& gradient, const at::Tensor& parameter);

/// Gives `.grad` of a parameter its mark when the present backward pass has ended. Until then the
/// engine and DDP's reducer see ordinary local tensors.
void mark_gradient_after_backward(c10::weak_intrusive_ptr<c10::TensorImpl> parameter);

}  // namespace oslo
