#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// Gradients of ordinary tensors whose shapes a run computes with (the points at which a forward
/// takes a derivative): shapes as well, which lead back to the tensors, so that
/// `torch::autograd::grad` finds them.
class OrdinaryGradients {
 public:
  ~OrdinaryGradients() { restore(); }

  /// `shape` stands for `tensor` where values lie in `layout`: the same, with a history that leads
  /// to that of `tensor`. Itself where no gradient is recorded.
  at::Tensor lead(const at::Tensor& tensor, at::Tensor shape, const LayoutPtr& layout);

  /// Puts back the gradients of leaves that were met: a backward pass has left shapes there.
  void restore();

 private:
  void keep(const at::Tensor& leaf);

  std::map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> leaves_;
};

}  // namespace oslo
