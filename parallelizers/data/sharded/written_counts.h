#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace oslo {

/// How often LibTorch counts that a tensor's memory was written; 0 in inference mode, which counts
/// nothing.
inline uint32_t version_of(c10::TensorImpl& impl) {
  return impl.is_inference() ? 0 : impl.version_counter().current_version();
}

/// Another tensor over the memory of `plain`, without history, that shares the count of writes of
/// `counted`.
inline at::Tensor alias_counted_by(const at::Tensor& plain, const at::Tensor& counted) {
  return at::Tensor(plain.unsafeGetTensorImpl()->shallow_copy_and_detach(
      counted.is_inference() ? c10::VariableVersion(0)
                             : counted.unsafeGetTensorImpl()->version_counter(),
      /*allow_tensor_metadata_change=*/true));
}

}  // namespace oslo
