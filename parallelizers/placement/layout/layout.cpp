#include "parallelizers/placement/layout/layout.h"

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"

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

Axes Layout::axes_cutting(int64_t dim) const {
  Axes cutting;
  for (const int axis : nesting()) {
    if (axes_[axis].dim == dim) cutting.push_back(axis);
  }
  return cutting;
}

Axes Layout::nesting() const {
  Axes order;
  for (int axis = 0; axis < axes(); ++axis) order.push_back(axis);
  if (axes() == 1) return order;
  const auto key = [&](int axis) {
    return std::pair(axes_[axis].whole() ? 0 : axes_[axis].cut->family().size(), axis);
  };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
  return order;
}

bool Layout::all_on_one_rank() const {
  for (const AxisCut& axis : axes_) {
    if (axis.whole()) continue;
    const Axes cutting = axes_cutting(axis.dim);
    const int64_t size = axes_[cutting.front()].cut->size();
    if (!axes_[cutting.back()].cut->gives_a_rank(size)) return false;
  }
  return !whole();
}

const Cut& Layout::cut_at(int axis, c10::ArrayRef<int> place) const {
  const Cut& own = *axes_[axis].cut;
  if (own.family().empty()) return own;
  size_t index = 0;
  for (const int outer : axes_cutting(axes_[axis].dim)) {
    if (outer == axis) break;
    index = index * axes_[outer].cut->ranks() + place[outer];
  }
  return *own.family()[index];
}

c10::SmallVector<int64_t, 6> Layout::global_sizes(c10::IntArrayRef local) const {
  c10::SmallVector<int64_t, 6> sizes(local.begin(), local.end());
  const Axes order = nesting();
  // Innermost first, so that the outermost cut, which knows the global size, has the last word.
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    if (!axes_[*axis].whole()) sizes[axes_[*axis].dim] = axes_[*axis].cut->size();
  }
  return sizes;
}

int64_t Layout::global_size(int64_t dim, int64_t local_size) const {
  const Axes cutting = axes_cutting(dim);
  return cutting.empty() ? local_size : axes_[cutting.front()].cut->size();
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

CutPtr cut_inside(const Layout* layout, const Placement& placement, int64_t size, int ranks) {
  auto cut = std::make_shared<const Cut>(placement.cut_of(size, ranks));
  const Axes outside = layout != nullptr ? layout->axes_cutting(placement.dim()) : Axes();
  if (outside.empty()) return cut;
  return cut->among(family_inside(*(*layout)[outside.back()].cut, placement, ranks));
}

Layout make_layout(const ContextPtr& context, const std::vector<Placement>& placements,
                   c10::IntArrayRef sizes, c10::ArrayRef<int> order) {
  const Mesh& mesh = context->mesh();
  OSLO_CHECK(static_cast<int>(placements.size()) == mesh.axes(), "the mesh has ", mesh.axes(),
             " axes, ", placements.size(), " placements were given; give one an axis");
  Layout layout(context);
  const Axes all = layout.nesting();
  const Axes in_order = order.empty() ? all : Axes(order.begin(), order.end());
  OSLO_CHECK(std::is_permutation(in_order.begin(), in_order.end(), all.begin(), all.end()),
             "the order in which axes cut must name each of the mesh's ", mesh.axes(),
             " axes once, counted from 0; seen ", order);
  c10::SmallVector<int64_t, 6> left(sizes.begin(), sizes.end());
  for (const int axis : in_order) {
    const Placement& placement = placements[axis];
    const auto& group = mesh.axis(axis);
    if (!placement.is_shard() || group->size() == 1) continue;
    const int64_t dim = placement.dim();
    OSLO_CHECK(dim < static_cast<int64_t>(left.size()), placement.to_string(),
               " cuts a dimension that a tensor of shape ", sizes, " does not have");
    CutPtr cut = cut_inside(&layout, placement, left[dim], group->size());
    left[dim] = cut->local_size(group->rank());
    layout[axis] = {dim, std::move(cut)};
  }
  return layout;
}

}  // namespace oslo
