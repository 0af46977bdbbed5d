#include "parallelizers/placement/layout/moving/redistribute.h"

#include <utility>

#include "parallelizers/placement/layout/moving/other_mesh.h"
#include "parallelizers/placement/layout/moving/recut.h"

namespace oslo {

Value redistribute(Value value, const LayoutPtr& target) {
  if (!target) return gather_all(std::move(value));
  if (value.layout && *value.layout == *target) return value;
  if (value.layout && !over_same_ranks(value.layout->context(), target->context())) {
    value = on_mesh_of(std::move(value), target->context());
    if (const LayoutPtr there = on_mesh_of(target, value.layout->context()); there != target) {
      check_one_mesh(value.layout->context(), (there ? there : target)->context());
      return redistribute(std::move(value), there);
    }
  }
  const int axes = target->axes();
  // What lies inside a cut that differs is undone with it, and made again.
  for (int axis = axes - 1; axis >= 0; --axis) {
    if (!value.layout || (*value.layout)[axis] == (*target)[axis]) continue;
    const auto& [dim, cut] = (*target)[axis];
    if (dim >= 0 && can_recut(value, axis, dim, *cut)) {
      value = recut_axis(std::move(value), axis, cut);
    } else {
      value = gather_axis(std::move(value), axis);
    }
  }
  for (const int axis : target->nesting()) {
    const auto& [dim, cut] = (*target)[axis];
    if (dim < 0 || (value.layout && (*value.layout)[axis].dim == dim)) continue;
    value = split_axis(std::move(value), target->context(), axis, dim, cut);
  }
  return value;
}

}  // namespace oslo
