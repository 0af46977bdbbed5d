#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/layout/layout.h"

namespace torch::autograd {
struct Node;
}

namespace oslo {

/// Where the gradients of a marked parameter arrive, in the place of LibTorch's AccumulateGrad. It
/// takes gradients of the whole parameter: placed ones from our own graph, and those that a user's
/// autograd::Function computes when the parameter itself is handed to it. LibTorch's accumulator
/// would hold those against the local shape: an error, or, where this rank's part has one row, a
/// silent sum. Keeps no reference to the parameter, whose mark owns it.
std::shared_ptr<torch::autograd::Node> make_accumulator(const at::Tensor& parameter,
                                                        const LayoutPtr& layout);

/// Whether a node was made by `make_accumulator`.
bool takes_whole_gradients(const torch::autograd::Node& node);
/// Whether it was made for this tensor.
bool accumulates_for(const torch::autograd::Node& node, const at::Tensor& tensor);

/// Gives a gradient its parameter's mark, in place. One that is marked or sparse stays as it is.
void mark_gradient(const at::Tensor& gradient, const at::Tensor& parameter);

/// Gives `.grad` of a parameter its mark when the present backward pass has ended. Until then the
/// engine and DDP's reducer see ordinary local tensors.
void mark_gradient_after_backward(c10::weak_intrusive_ptr<c10::TensorImpl> parameter);

}  // namespace oslo
