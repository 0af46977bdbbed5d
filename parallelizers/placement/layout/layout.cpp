#include "parallelizers/placement/layout/layout.h"

#include <algorithm>

#include "mpu/error.h"

namespace oslo {

bool same_ranks(const Mesh& a, const Mesh& b) {
  if (a.dry || b.dry || a.axes() != b.axes()) return false;
  for (int axis = 0; axis < a.axes(); ++axis) {
    if (a.axis(axis)->ranks() != b.axis(axis)->ranks()) return false;
  }
  return true;
}

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
  for (int axis = 0; axis < axes(); ++axis) {
    if (axes_[axis].whole()) continue;
    const int64_t dim = axes_[axis].dim;
    int first = axis, last = axis;
    for (int other = 0; other < axes(); ++other) {
      if (axes_[other].dim != dim) continue;
      first = std::min(first, other);
      last = std::max(last, other);
    }
    if (!axes_[last].cut->gives_a_rank(axes_[first].cut->size())) return false;
  }
  return !whole();
}

const Cut& Layout::cut_at(int axis, c10::ArrayRef<int> place) const {
  const Cut& own = *axes_[axis].cut;
  if (own.family().empty()) return own;
  size_t index = 0;
  for (int outer = 0; outer < axis; ++outer) {
    if (axes_[outer].dim != axes_[axis].dim) continue;
    index = index * axes_[outer].cut->ranks() + place[outer];
  }
  return *own.family()[index];
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

namespace {

/// Of the axes before `axis`, the last that cuts `dim`; null where none does.
CutPtr innermost_cut(const Layout& layout, int axis, int64_t dim) {
  CutPtr found;
  for (int outer = 0; outer < axis; ++outer) {
    if (layout[outer].dim == dim) found = layout[outer].cut;
  }
  return found;
}

/// The cuts by `placement` of what `outer` leaves on each of its ranks, everywhere.
Cut::Family family_inside(const Cut& outer, const Placement& placement, int ranks) {
  Cut::Family family;
  const auto add = [&](const Cut& cut) {
    for (const int64_t size : cut.sizes()) {
      family.push_back(std::make_shared<const Cut>(placement.cut_of(size, ranks)));
    }
  };
  if (outer.family().empty()) add(outer);
  for (const auto& other : outer.family()) add(*other);
  return family;
}

}  // namespace

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
    if (const CutPtr outer = innermost_cut(layout, axis, dim)) {
      cut = cut->among(family_inside(*outer, placement, group->size()));
    }
    left[dim] = cut->local_size(group->rank());
    layout[axis] = {dim, std::move(cut)};
  }
  return layout;
}

}  // namespace oslo
