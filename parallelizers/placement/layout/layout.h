#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <vector>

#include "mpu/mesh.h"
#include "parallelizers/placement/layout/placement.h"

namespace oslo {

/// Whether two meshes are one: models that were initialized one by one have meshes of their own
/// over the same ranks, and their values may meet. What the operator then moves is counted by the
/// mesh of the first operand. A dry run's mesh is no other.
bool same_ranks(const Mesh& a, const Mesh& b);
inline bool over_same_ranks(const MeshPtr& a, const MeshPtr& b) {
  return a == b || same_ranks(*a, *b);
}

/// How a value lies on a mesh: for each axis, nothing (every rank of the axis holds all of it) or
/// one dimension and its cut. Axes nest: a cut on a later axis divides what the earlier ones left
/// on this rank, so cuts on one dimension are undone last axis first.
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

  explicit Layout(MeshPtr mesh) : mesh_(std::move(mesh)), axes_(mesh_->axes()) {}

  const MeshPtr& mesh() const { return mesh_; }
  int axes() const { return static_cast<int>(axes_.size()); }
  AxisCut& operator[](int axis) { return axes_[axis]; }
  const AxisCut& operator[](int axis) const { return axes_[axis]; }
  const std::shared_ptr<Group>& group(int axis) const { return mesh_->axis(axis); }

  bool whole() const;
  bool cuts(int64_t dim) const;
  /// Whether every rank reads the same global strides off its local tensor: all its cuts do.
  bool tells_strides() const;
  /// Whether some rank, not necessarily this one, holds everything, though others hold less (fewer
  /// units than ranks).
  bool all_on_one_rank() const;
  bool operator==(const Layout& other) const {
    return this == &other || (over_same_ranks(mesh_, other.mesh_) && axes_ == other.axes_);
  }

  /// Global sizes of a local tensor of sizes `local`.
  c10::SmallVector<int64_t, 6> global_sizes(c10::IntArrayRef local) const;
  /// The cut of `axis` at a place of the mesh: `place` is a rank for each of the axes before it.
  const Cut& cut_at(int axis, c10::ArrayRef<int> place) const;
  /// Size of `dim` on this rank when only the axes before `axis` cut it.
  int64_t size_before(int axis, int64_t dim, int64_t local_size) const;

  /// "whole", or per axis "dim 1: 4+3" joined by "; ".
  std::string to_string() const;

 private:
  MeshPtr mesh_;
  c10::SmallVector<AxisCut, 2> axes_;
};

/// Null stands for a plain tensor: whole on every axis of any mesh.
using LayoutPtr = std::shared_ptr<const Layout>;

/// The layout of a tensor of `sizes` under one placement an axis. Throws when a dimension does not
/// exist or does not divide into the placement's runs and units.
Layout make_layout(const MeshPtr& mesh, const std::vector<Placement>& placements,
                   c10::IntArrayRef sizes);

}  // namespace oslo
