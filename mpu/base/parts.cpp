#include "mpu/base/parts.h"

#include <ATen/ATen.h>

#include <numeric>

namespace oslo::parts {

int64_t sum(c10::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

int64_t row_size(const at::Tensor& tensor, int64_t dim) {
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements *= d == dim ? 1 : tensor.size(d);
  return elements;
}

at::Tensor resized(const at::Tensor& like, int64_t dim, int64_t size) {
  auto shape = like.sizes().vec();
  shape[dim] = size;
  return at::empty(shape, like.options());
}

at::Tensor plain(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return tensor.clone(at::MemoryFormat::Contiguous);
  if (!tensor.is_conj() && !tensor.is_neg()) return tensor.contiguous();
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor as_real(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).detach();
}

std::vector<at::Tensor> as_real_parts(const at::Tensor& whole, int64_t dim,
                                      c10::IntArrayRef sizes) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : whole.split_with_sizes(sizes, dim)) parts.push_back(as_real(part));
  return parts;
}

}  // namespace oslo::parts
