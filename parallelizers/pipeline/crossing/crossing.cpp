#include "parallelizers/pipeline/crossing/crossing.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/layout/memory_order.h"

namespace oslo {

uint64_t writes_to(const at::Tensor& tensor, const Mesh& mesh) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : mesh.uncounted_writes();
}

at::Tensor place_for(const Value& value, int to) {
  const Mesh& mesh = *value.layout->mesh();
  const at::Device device = mesh.holds(StageSet::of(to)) ? mesh.device : at::Device(at::kMeta);
  return at::empty_permuted(value.local.sizes(), memory_order(value.local),
                            at::TensorOptions(value.local.dtype()).device(device));
}

std::vector<at::Tensor> message_of(const at::Tensor& local) {
  if (!local.defined()) return {local};
  const at::Tensor plain = local.detach();
  if (plain.is_contiguous()) return {plain};
  const MemoryOrder order = memory_order(plain);
  const at::Tensor in_order = plain.permute(order).contiguous();
  if (std::is_sorted(order.begin(), order.end())) return {in_order};
  return {in_order, at::tensor(c10::IntArrayRef(order), at::kLong)};
}

at::Tensor value_of_message(const std::vector<at::Tensor>& message) {
  const at::Tensor& in_order = message.at(0);
  if (message.size() == 1) return in_order;
  const auto* order = message[1].const_data_ptr<int64_t>();
  std::vector<int64_t> place(in_order.dim());
  for (int64_t i = 0; i < in_order.dim(); ++i) place[order[i]] = i;
  return in_order.permute(place);
}

at::Tensor expected_of_message(const std::vector<at::Tensor>& message, const at::Tensor& expected) {
  at::Tensor value = value_of_message(message);
  OSLO_CHECK(value.sizes() == expected.sizes() && value.dtype() == expected.dtype(),
             "a value that comes from another pipeline stage is ", value.sizes(), ", ",
             value.dtype(), ", expected was ", expected.sizes(), ", ", expected.dtype(),
             "; every rank has to run the same forward on the same batch");
  return value;
}

at::Tensor dense(const at::Tensor& local) {
  const at::Tensor plain = local.detach();
  if (plain.is_non_overlapping_and_dense()) return plain;
  return at::empty_permuted(plain.sizes(), memory_order(plain), plain.options()).copy_(plain);
}

}  // namespace oslo
