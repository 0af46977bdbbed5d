#include "checkpoint/formats/tensors/tensor_bytes.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "mpu/base/error.h"
#include "mpu/base/parts.h"

namespace oslo {

std::optional<uint64_t> byte_count(const std::vector<int64_t>& shape, uint64_t element_size) {
  // Strides count an empty axis as 1, so the other sizes must fit even where there is nothing.
  auto bytes = static_cast<int64_t>(element_size);
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

void check_has_bytes(const at::Tensor& tensor, const std::string& where) {
  OSLO_CHECK(!tensor.is_meta(), where, "it has no data yet (device meta); materialize it first");
  OSLO_CHECK(tensor.layout() == at::kStrided, where, "it is ", c10::str(tensor.layout()),
             "; only dense tensors can be written");
}

at::Tensor to_plain_bytes(const at::Tensor& tensor) {
  const at::Tensor plain = parts::plain(tensor.detach());
  if (plain.is_cpu()) return plain;
  // A device copies to pinned memory at the bus's speed, to other memory by way of some of its own.
  at::Tensor host = at::empty(
      plain.sizes(), plain.options().device(at::kCPU).pinned_memory(true).requires_grad(false));
  return host.copy_(plain);
}

void check_bool_bytes(const void* data, uint64_t bytes, const std::string& where) {
  const auto* byte = static_cast<const uint8_t*>(data);
  const auto* wrong = std::find_if(byte, byte + bytes, [](uint8_t value) { return value > 1; });
  OSLO_CHECK(wrong == byte + bytes, where, " is of bools, but its byte ", wrong - byte, " is ",
             static_cast<int>(*wrong), ": the file is damaged");
}

}  // namespace oslo
