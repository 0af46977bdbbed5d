#include "parallelizers/placement/layout.h"

#include <algorithm>

#include "mpu/error.h"

namespace oslo {

bool Layout::whole() const {
  for (const AxisCut& axis : axes_) {
    if (!axis.whole()) return false;
  }
  return true;
}

bool Layout::cuts(int64_t dim) const {
  for (const AxisCut& axis : axes_) {
    if (axis.dim == dim) return true;
  }
  return false;
}

bool Layout::tells_strides() const {
  for (const AxisCut& axis : axes_) {
    if (!axis.whole() && !axis.cut->tells_strides()) return false;
  }
  return true;
}

bool Layout::all_on_one_rank() const {
  for (const AxisCut& axis : axes_) {
    if (axis.whole()) continue;
    const auto& sizes = axis.cut->sizes();
    if (std::find(sizes.begin(), sizes.end(), axis.cut->size()) == sizes.end()) return false;
  }
  return !whole();
}

c10::SmallVector<int64_t, 6> Layout::global_sizes(c10::IntArrayRef local) const {
  c10::SmallVector<int64_t, 6> sizes(local.begin(), local.end());
  // Last axis first, so that the outermost cut, which knows the global size, has the last word.
  for (int axis = axes() - 1; axis >= 0; --axis) {
    if (!axes_[axis].whole()) sizes[axes_[axis].dim] = axes_[axis].cut->size();
  }
  return sizes;
}

int64_t Layout::size_before(int axis, int64_t dim, int64_t local_size) const {
  for (int a = axis; a < axes(); ++a) {
    if (axes_[a].dim == dim) return axes_[a].cut->size();
  }
  return local_size;
}

std::string Layout::to_string() const {
  if (whole()) return "whole";
  std::string text;
  for (const AxisCut& axis : axes_) {
    if (!text.empty()) text += "; ";
    if (axis.whole()) {
      text += "whole";
      continue;
    }
    text += c10::str("dim ", axis.dim, ": ");
    for (int r = 0; r < axis.cut->ranks(); ++r) {
      text += c10::str(r == 0 ? "" : "+", axis.cut->local_size(r));
    }
  }
  return text;
}

Layout make_layout(const MeshPtr& mesh, const std::vector<Placement>& placements,
                   c10::IntArrayRef sizes) {
  OSLO_CHECK(static_cast<int>(placements.size()) == mesh->axes(), "the mesh has ", mesh->axes(),
             " axes, ", placements.size(), " placements were given; give one an axis");
  Layout layout(mesh);
  c10::SmallVector<int64_t, 6> left(sizes.begin(), sizes.end());
  for (int axis = 0; axis < mesh->axes(); ++axis) {
    const Placement& placement = placements[axis];
    const auto& group = mesh->axis(axis);
    if (!placement.is_shard() || group->size() == 1) continue;
    const int64_t dim = placement.dim();
    OSLO_CHECK(dim < static_cast<int64_t>(left.size()), placement.to_string(),
               " cuts a dimension that a tensor of shape ", sizes, " does not have");
    auto cut = std::make_shared<const Cut>(placement.cut_of(left[dim], group->size()));
    left[dim] = cut->local_size(group->rank());
    layout[axis] = {dim, std::move(cut)};
  }
  return layout;
}

}  // namespace oslo
