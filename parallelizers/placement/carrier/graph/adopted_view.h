#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/layout/value.h"

namespace oslo {

// Views of ordinary tensors that pipeline stages have become the owners of (adopt.h): slices of a
// buffer that a forward fills layer by layer. As on one device a write to a view gives its base a
// place in autograd's graph, and a write to the base gives its views one. The graph is that of the
// local tensors; each use of the base makes an alias of its own, of which LibTorch knows the views.

/// The adopted tensor that `view`, placed or marked itself, is a view of; undefined where it is
/// none of any.
at::Tensor adopted_base(const at::Tensor& view);

/// What an in-place operator whose gradient is recorded may write of a marked view: a view of its
/// base as that stands in the graph.
at::Tensor writable_view(const at::Tensor& marked_view);

/// After `local`, a view of an alias of `base`, was written: `base` follows that alias.
void follow_view(const at::Tensor& base, const at::Tensor& local);

/// What `local`, of a placed view of `base`, is now that `base` may have been written since, and
/// may lie in other memory of the same strides: itself, or a view of another alias.
at::Tensor view_as_of_now(const at::Tensor& local, const at::Tensor& base, bool moved);

}  // namespace oslo
