#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallelizers/placement/layout/layout.h"
#include "parallelizers/placement/layout/partial_sum.h"
#include "parallelizers/placement/layout/weight_uses.h"

namespace oslo {

/// What a rule sees of a tensor: this rank's part and where the rest lies. A null layout is a plain
/// tensor, the same on every rank. Sizes are global.
struct Value {
  at::Tensor local;
  LayoutPtr layout;
  /// Of a weight as the operand of a call: what the plan says of this call's result and input, on
  /// each axis (layout/weight_uses.h). Empty for everything else, results too.
  WeightUse use = {};
  /// Of an operand: the strides that one device's has; empty where it is contiguous. What is
  /// gathered of it lies in memory in their order, and random numbers are drawn in that.
  std::vector<int64_t> strides = {};
  /// What has still to be added to it; null of nearly all values. Rules see no other.
  std::shared_ptr<const PartialSum> partial = {};

  bool defined() const { return local.defined(); }
  int64_t dim() const { return local.dim(); }
  int64_t size(int64_t dim) const;
  c10::SmallVector<int64_t, 6> sizes() const;
  /// Whether any axis cuts it.
  bool cut() const { return layout && !layout->whole(); }
  /// Whether another pipeline stage holds it: `local` is then a shape.
  bool elsewhere() const { return layout && !layout->here(); }
  /// Whether it is more than an ordinary tensor: cut, held by some stages only, or followed.
  bool stays_placed() const {
    return partial || (layout && (layout->resident() || layout->followed() || !layout->whole()));
  }
  bool cut_at(int64_t dim) const { return layout && layout->cuts(dim); }
  /// The axes that cut `dim`, outermost first.
  Axes axes_cutting(int64_t dim) const;
  /// Whether one axis at most cuts `dim`, and its ranks' parts follow each other.
  bool in_one_stretch(int64_t dim) const;
};

/// Moving a value along one axis of its mesh. All are differentiable; each is the identity where
/// there is nothing to do.

/// Joins the parts along `axis` (inner cuts of the same dimension first). With `then_copy` every
/// rank goes on to use the result for something else: backward reduce-scatters.
Value gather_axis(Value value, int axis, bool then_copy = false);
/// Keeps this rank's part of `dim`; the value is whole on `axis`. Cuts of `dim` that would lie
/// inside this one are gathered first.
Value split_axis(Value value, const ContextPtr& context, int axis, int64_t dim, const CutPtr& cut);
/// A whole value that every rank of the axis uses for something else.
Value copy_axis(Value value, const Mesh& mesh, int axis);
/// A local tensor that holds one addend a rank of the axis.
at::Tensor reduce_axis(at::Tensor partial, const Mesh& mesh, int axis);
/// A value whose partial sum, if it is one, is all-reduced, or reduce-scattered where it says so.
/// It is recorded where the addends are, also under NoGradGuard: who looks first may not be who
/// uses it.
Value end_sum(Value value);
/// How `end_sum` of it lies.
LayoutPtr ended_layout(const Value& value);
/// The same of a partial sum as `reduce_axis` takes it, of which each rank keeps its part of `dim`,
/// cut evenly inside all other cuts.
Value scatter_axis(Value partial, const ContextPtr& context, int axis, int64_t dim);
/// How what `scatter_axis` gives lies.
LayoutPtr scattered_layout(const Value& partial, const ContextPtr& context, int axis, int64_t dim);

/// Tells the context's `GatherWatch`, if there is one, that `operation` is about to gather the
/// value. Throws what it throws.
void announce_gather(const Value& value, const char* operation, const std::string& reason);
/// Whole on every axis.
Value gather_all(Value value);
/// The same, written into the context's report of gathers: `operation` needed it, for this
/// `reason`.
at::Tensor gather_reported(const Value& value, const char* operation, const std::string& reason);
/// This rank's part of `whole`, without communication or history.
at::Tensor local_part(const at::Tensor& whole, const Layout& layout);

}  // namespace oslo
