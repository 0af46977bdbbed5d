#pragma once

#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

/// The place of a placed tensor in autograd's graph. The graph proper is that of the local tensors;
/// the front is a node beside it, from the gradient of the placed tensor to that of its local one.
/// Few are ever looked at (`backward()` on a cut tensor, `grad_fn()`, an autograd::Function), so
/// that a tensor only says that it requires a gradient until LibTorch asks for the node. Hooks and
/// retained gradients are those of the local tensor, with its gradient shown as a placed one.

/// Gives `placed` a front if its local tensor has a gradient; also after that was written.
void attach_front(const at::Tensor& placed);

/// After a write, which may have made a new local tensor, or for a view that was taken again.
void replace_value(const at::Tensor& placed, Value value);

/// As `detach_` does: the tensor stays, with another local one, and requires no gradient.
void leave_graph(const at::Tensor& placed);

/// Whether the node is still to be made.
bool front_is_pending(const PlacedTensorImpl& impl);

/// Makes the node if it is still to be made, or was before the local tensor was written through a
/// view. Threads may call it together.
void update_front(const at::Tensor& placed);

/// What hooks and a retained gradient of `placed` are set on; null where that is a place of its
/// own.
const at::Tensor* watched_local(const at::Tensor& placed);

/// Of a tensor with a `watched_local`.
void retain_gradient(const at::Tensor& placed);

/// Whether there are any hooks, or a retained gradient.
bool is_watched(const PlacedTensorImpl& impl);

/// Whether the tensor stands elsewhere in the graph than at its local tensor: as a result of a
/// user's autograd::Function, or a leaf of its own.
bool has_own_place_in_graph(const PlacedTensorImpl& impl);

/// Whether the tensor itself was made to require a gradient.
bool is_own_leaf(const PlacedTensorImpl& impl);

/// Whether the tensor is a view of one that stands elsewhere in the graph than its local tensor
/// does: a user's autograd::Function has written it (`mark_dirty`).
bool follows_base(const PlacedTensorImpl& impl);

/// The local tensor, attached to the tensor's own place in the graph: what uses it leads there.
at::Tensor attached(const at::Tensor& placed);

}  // namespace oslo
