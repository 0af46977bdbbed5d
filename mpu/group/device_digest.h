#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace oslo {

/// A digest of a contiguous tensor's bytes and their order, computed where the tensor is: one
/// number comes to the host. A sum of mixed words, so that parallel threads may add them in any
/// order: 64-bit integers wrap around, and the digest is the same in every run and on every device.
/// Another one than the CPU's (`content_digest`), which goes word by word. Takes room for some 100
/// MiB.
uint64_t device_digest(const at::Tensor& tensor);

}  // namespace oslo
