#include "parallelizers/placement/rules/positions.h"

#include <ATen/ATen.h>

namespace oslo {

at::Tensor positions_along(const Value& x, int64_t dim, at::Device device) {
  const at::Tensor all = at::arange(x.size(dim), at::TensorOptions(at::kLong).device(device));
  if (!x.layout) return all;
  Layout along(x.layout->context());
  for (const int axis : x.axes_cutting(dim)) along[axis] = {0, (*x.layout)[axis].cut};
  return local_part(all, along);
}

}  // namespace oslo
