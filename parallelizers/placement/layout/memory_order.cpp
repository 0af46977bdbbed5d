#include "parallelizers/placement/layout/memory_order.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace oslo {
namespace {

/// Whether a part's elements already lie so. Of a dimension of one element or none the stride is to
/// fit as well: what copies the part keeps the order by it.
bool lies_in_order(const at::Tensor& part, c10::IntArrayRef sizes, const MemoryOrder& order) {
  int64_t inside = 0;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    if (sizes[*dim] == 1) continue;
    if (part.stride(*dim) < inside) return false;
    inside = part.stride(*dim) * std::max<int64_t>(1, part.size(*dim));
  }
  return true;
}

}  // namespace

MemoryOrder memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  MemoryOrder order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto stride = [&](int64_t dim) { return sizes[dim] == 1 ? -1 : strides[dim]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return stride(a) > stride(b); });
  return order;
}

MemoryOrder memory_order(const at::Tensor& tensor) {
  if (!tensor.is_contiguous()) return memory_order(tensor.sizes(), tensor.strides());
  MemoryOrder order(tensor.dim());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int64_t> dense_strides(c10::IntArrayRef sizes, const MemoryOrder& order) {
  std::vector<int64_t> strides(sizes.size());
  int64_t inside = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = inside;
    inside *= std::max<int64_t>(1, sizes[*dim]);
  }
  return strides;
}

at::Tensor in_order_of(at::Tensor part, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const MemoryOrder order = memory_order(sizes, strides);
  if (lies_in_order(part, sizes, order)) return part;
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return part.permute(order).clone(at::MemoryFormat::Contiguous).permute(back);
}

}  // namespace oslo
