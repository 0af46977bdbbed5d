#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// A parameter of which each data replica keeps a part between its uses (ZeRO 3, Rajbhandari et al.
/// 2020, arXiv 1910.02054). Its mark says how the part lies, and has this.
class ShardedWeight {
 public:
  virtual ~ShardedWeight() = default;

  /// What operators of a forward compute with: an ordinary tensor, or where tensor ranks cut the
  /// weight a marked one. Its gradient becomes this rank's part of the average over replicas.
  /// Collective over the replicas where it is not there yet.
  virtual at::Tensor gathered() = 0;

  /// This rank's part of the average over replicas of a gradient of the whole weight that came by
  /// another way (of a user's autograd::Function): undefined where it comes when the pass has
  /// ended, by the same way. Collective over the replicas where it is not.
  virtual at::Tensor averaged(const at::Tensor& gradient) = 0;

  /// Whether all replicas come to its uses together: what is gathered is not there without them.
  virtual bool needs_replicas() const = 0;

  /// How what is gathered lies over tensor ranks and stages; null: as an ordinary tensor.
  virtual const LayoutPtr& used() const = 0;
  /// Other pipeline stages have `parameter` from now on, whose part lies in `layout`.
  virtual void lies_in(const at::Tensor& parameter, const LayoutPtr& layout) = 0;

  /// Autocast has made `cast` of `of`: what was gathered, or a view of it, as an ordinary tensor.
  virtual void cast_made(const at::Tensor& cast, const at::Tensor& of) = 0;

  /// The program has got `data`, whose writes are counted apart, over the memory of the part
  /// (`p.data()`, by which LibTorch's SGD writes): they are writes to the weight.
  virtual void count_writes_of(const at::Tensor& data) = 0;

  /// `tensor`, which has this weight's mark, is about to be written: what is returned ends when it
  /// has been. Null: there is nothing to see to. May wait for ranks that read it.
  virtual std::shared_ptr<void> write(const at::Tensor& tensor) = 0;
};

}  // namespace oslo
