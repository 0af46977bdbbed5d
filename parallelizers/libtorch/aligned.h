#pragma once

#include <cstddef>

namespace oslo {

/// Whole weights begin at multiples of 64 bytes, as tensors do that LibTorch allocates: kernels'
/// vectors are faster so, and the order in which MKL's products add up in double depends on it.
constexpr size_t aligned(size_t bytes) {
  constexpr size_t kAlign = 64;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace oslo
