#include "parallelizers/placement/layout/value.h"

#include <ATen/ATen.h>

#include <numeric>

#include "mpu/collectives.h"
#include "mpu/error.h"

namespace oslo {
namespace {

LayoutPtr with_axis(const Value& value, const MeshPtr& mesh, int axis, Layout::AxisCut cut) {
  auto layout =
      value.layout ? std::make_shared<Layout>(*value.layout) : std::make_shared<Layout>(mesh);
  (*layout)[axis] = std::move(cut);
  return layout;
}

}  // namespace

int64_t Value::size(int64_t dim) const {
  return layout ? layout->size_before(0, dim, local.size(dim)) : local.size(dim);
}

c10::SmallVector<int64_t, 6> Value::sizes() const {
  if (layout) return layout->global_sizes(local.sizes());
  return {local.sizes().begin(), local.sizes().end()};
}

Axes Value::axes_cutting(int64_t dim) const {
  Axes cutting;
  for (int axis = 0; layout && axis < layout->axes(); ++axis) {
    if ((*layout)[axis].dim == dim) cutting.push_back(axis);
  }
  return cutting;
}

bool Value::in_one_stretch(int64_t dim) const {
  const Axes cutting = axes_cutting(dim);
  return cutting.empty() || (cutting.size() == 1 && (*layout)[cutting[0]].cut->contiguous());
}

Value gather_axis(Value value, int axis, bool then_copy) {
  if (!value.layout || (*value.layout)[axis].whole()) return value;
  const int64_t dim = (*value.layout)[axis].dim;
  for (int inner = value.layout->axes() - 1; inner > axis; --inner) {
    if ((*value.layout)[inner].dim == dim) value = gather_axis(std::move(value), inner);
  }
  const auto [_, cut] = (*value.layout)[axis];
  const auto& group = value.layout->group(axis);
  const at::Tensor joined = then_copy ? gather_and_copy(value.local, group, dim, cut->sizes())
                                      : gather_from(value.local, group, dim, cut->sizes());
  return {cut->in_order(joined, dim), with_axis(value, value.layout->mesh(), axis, {})};
}

Value split_axis(Value value, const MeshPtr& mesh, int axis, int64_t dim, const CutPtr& cut) {
  if (value.layout) {
    for (int inner = value.layout->axes() - 1; inner > axis; --inner) {
      if ((*value.layout)[inner].dim == dim) value = gather_axis(std::move(value), inner);
    }
  }
  OSLO_CHECK(value.local.size(dim) == cut->size(), "dimension ", dim, " has ",
             value.local.size(dim), " elements on this rank, the cut divides ", cut->size());
  at::Tensor part = scatter_to(cut->by_rank(value.local, dim), mesh->axis(axis), dim, cut->sizes());
  return {std::move(part), with_axis(value, mesh, axis, {dim, cut})};
}

Value copy_axis(Value value, const MeshPtr& mesh, int axis) {
  value.local = copy_to(value.local, mesh->axis(axis));
  return value;
}

at::Tensor reduce_axis(at::Tensor partial, const Mesh& mesh, int axis) {
  return reduce_from(std::move(partial), mesh.axis(axis));
}

Value gather_all(Value value) {
  if (!value.layout) return value;
  for (int axis = value.layout->axes() - 1; axis >= 0; --axis) {
    value = gather_axis(std::move(value), axis);
  }
  value.layout = nullptr;
  return value;
}

at::Tensor gather_reported(const Value& value, const char* operation, const std::string& reason) {
  if (!value.cut()) return value.local;
  at::Tensor whole = gather_all(value).local;
  value.layout->mesh()->gathers().record(
      operation, reason,
      (whole.numel() - value.local.numel()) * static_cast<int64_t>(whole.element_size()));
  return whole;
}

Value redistribute(Value value, const LayoutPtr& target) {
  if (!target) return gather_all(std::move(value));
  if (value.layout && *value.layout == *target) return value;
  const int axes = target->axes();
  // From the first axis that differs on, inner cuts have to be undone and made again.
  for (int axis = axes - 1; axis >= 0; --axis) {
    if (value.layout && !((*value.layout)[axis] == (*target)[axis])) {
      value = gather_axis(std::move(value), axis);
    }
  }
  for (int axis = 0; axis < axes; ++axis) {
    const auto& [dim, cut] = (*target)[axis];
    if (dim < 0 || (value.layout && (*value.layout)[axis].dim == dim)) continue;
    value = split_axis(std::move(value), target->mesh(), axis, dim, cut);
  }
  return value;
}

at::Tensor local_part(const at::Tensor& whole, const Layout& layout) {
  at::Tensor part = whole;
  for (int axis = 0; axis < layout.axes(); ++axis) {
    const auto& [dim, cut] = layout[axis];
    if (dim < 0) continue;
    const int rank = layout.group(axis)->rank();
    const auto before = c10::IntArrayRef(cut->sizes()).slice(0, rank);
    part = cut->by_rank(part, dim).narrow(
        dim, std::accumulate(before.begin(), before.end(), int64_t{0}), cut->local_size(rank));
  }
  return part;
}

}  // namespace oslo
