#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace oslo {

/// Behind an ordinary tensor that was computed from cut values the graph goes on with local
/// tensors, while its gradient may be a placed tensor: a user's autograd::Function on it and a cut
/// weight returns one, a hook may, and so may the caller of backward(gradient). From now on such a
/// gradient is gathered when it arrives. For tensors, and lists of them, among `results`; nothing
/// for those that are placed or have no history. One small allocation each; no communication
/// otherwise.
void gather_gradients_of(c10::ArrayRef<c10::IValue> results);

/// The same for an ordinary leaf, such as a parameter that is whole: its gradient is an ordinary
/// tensor, as optimizers keep, and DDP's buckets take. Nothing for one that requires no
/// gradient, or was given here before.
void gather_gradients_of_leaf(const at::Tensor& leaf);

/// Takes that back.
void release_gradients_of_leaf(const at::Tensor& leaf);

}  // namespace oslo
