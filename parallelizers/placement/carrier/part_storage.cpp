#include "parallelizers/placement/carrier/part_storage.h"

#include "parallelizers/libtorch/keys.h"

namespace oslo {

c10::intrusive_ptr<c10::TensorImpl> implementation_over(const at::Tensor& part, bool with_key) {
  const auto keys = part.key_set();
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(part.storage()), with_key ? keys.add(kPlacedKey) : keys.remove(kPlacedKey),
      part.dtype());
  impl->set_sizes_and_strides(part.sizes(), part.strides(), part.storage_offset());
  return impl;
}

}  // namespace oslo
