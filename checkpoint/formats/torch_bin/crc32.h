#pragma once

#include <cstddef>
#include <cstdint>

namespace oslo {

/// CRC-32 (IEEE 802.3, the one of zip) of `bytes` bytes, going on from `before`, that of the bytes
/// ahead of them. LibTorch's own is hidden in its library.
uint32_t crc32(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace oslo
