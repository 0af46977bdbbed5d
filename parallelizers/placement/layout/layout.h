#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <vector>

#include "parallelizers/placement/layout/context.h"
#include "parallelizers/placement/layout/placement.h"

namespace oslo {

/// Of a mesh.
using Axes = c10::SmallVector<int, 2>;

/// How a value lies on a mesh: for each axis, nothing (every rank of the axis holds all of it) or
/// one dimension and its cut. Where several axes cut one dimension they nest: an inner one divides
/// what the outer ones left on this rank, and is undone before them. Which is the outer one may
/// differ between values on one mesh (3D parallelism needs three orders). A cut tells: its family
/// has a member for each place that the cuts outside it leave, the outermost has none; so layouts
/// of equal cuts nest alike.
class Layout {
 public:
  struct AxisCut {
    int64_t dim = -1;  ///< -1: whole on this axis
    CutPtr cut;

    bool whole() const { return dim < 0; }
    bool operator==(const AxisCut& other) const {
      return dim == other.dim && (cut == other.cut || (cut && other.cut && *cut == *other.cut));
    }
  };

  explicit Layout(ContextPtr context, StageSet stages = {})
      : context_(std::move(context)), axes_(mesh().axes()), stages_(stages) {}
  explicit Layout(const MeshPtr& mesh) : Layout(context_of(mesh)) {}

  /// What the value shares with all others of its model; it holds the mesh.
  const ContextPtr& context() const { return context_; }
  const Mesh& mesh() const { return context_->mesh(); }
  int axes() const { return static_cast<int>(axes_.size()); }
  AxisCut& operator[](int axis) { return axes_[axis]; }
  const AxisCut& operator[](int axis) const { return axes_[axis]; }
  const std::shared_ptr<Group>& group(int axis) const { return mesh().axis(axis); }

  /// Residency: the pipeline stages whose ranks hold the value. Elsewhere its local tensor is a
  /// shape without content. Empty: all ranks hold it.
  StageSet stages() const { return stages_; }
  void set_stages(StageSet stages) { stages_ = stages; }
  bool resident() const { return !stages_.empty(); }
  /// Whether this rank holds the value.
  bool here() const { return context_->holds(stages_); }

  /// Whether what is computed of the value stays placed even where nothing cuts it, so that every
  /// operator of the forward comes through the door (layout/precision.h). Of the model's parameters
  /// and what a forward makes of them; not of gradients and of states that an optimizer keeps.
  /// Layouts that differ in this alone are equal.
  bool followed() const { return followed_; }
  void set_followed(bool followed) { followed_ = followed; }

  bool whole() const;
  bool cuts(int64_t dim) const;
  /// The axes that cut `dim`, outermost first.
  Axes axes_cutting(int64_t dim) const;
  /// All axes of the mesh, outer ones before those inside them; otherwise in the mesh's order.
  Axes nesting() const;
  /// Whether every rank reads the same global strides off its local tensor: all its cuts do.
  bool tells_strides() const;
  /// Whether some rank, not necessarily this one, holds everything, though others hold less (fewer
  /// units than ranks).
  bool all_on_one_rank() const;
  bool operator==(const Layout& other) const {
    return this == &other || (stages_ == other.stages_ &&
                              over_same_ranks(context_, other.context_) && axes_ == other.axes_);
  }

  /// Global sizes of a local tensor of sizes `local`.
  c10::SmallVector<int64_t, 6> global_sizes(c10::IntArrayRef local) const;
  /// The cut of `axis` at a place of the mesh: `place` is a rank for each axis; those count that
  /// cut the same dimension outside it.
  const Cut& cut_at(int axis, c10::ArrayRef<int> place) const;
  /// Size of `dim` in the whole, of which this rank's part has `local_size`.
  int64_t global_size(int64_t dim, int64_t local_size) const;

  /// "whole", or per axis "dim 1: 4+3" joined by "; ".
  std::string to_string() const;

 private:
  ContextPtr context_;
  c10::SmallVector<AxisCut, 2> axes_;
  StageSet stages_;
  bool followed_ = false;
};

/// Null stands for a plain tensor: whole on every axis of any mesh.
using LayoutPtr = std::shared_ptr<const Layout>;

/// The layout of a tensor of `sizes` under one placement an axis. `order` has every axis of the
/// mesh once: of two that cut one dimension, the earlier is the outer one; empty: the mesh's order.
/// Throws when a dimension does not exist or does not divide into the placement's runs and units.
Layout make_layout(const ContextPtr& context, const std::vector<Placement>& placements,
                   c10::IntArrayRef sizes, c10::ArrayRef<int> order = {});
inline Layout make_layout(const MeshPtr& mesh, const std::vector<Placement>& placements,
                          c10::IntArrayRef sizes, c10::ArrayRef<int> order = {}) {
  return make_layout(context_of(mesh), placements, sizes, order);
}

/// The cut by `placement`, over the ranks of one more axis, of the `size` elements that `layout`
/// (null: whole) leaves of the placement's dimension on this rank: the innermost one.
CutPtr cut_inside(const Layout* layout, const Placement& placement, int64_t size, int ranks);

}  // namespace oslo
