#pragma once

#include <cstdint>

namespace oslo {

/// `digest` with one more word taken in. For comparing ranks and runs, not against an adversary.
inline uint64_t mix(uint64_t digest, uint64_t word) {
  digest = (digest ^ word) * 0x9E3779B97F4A7C15ull;
  return digest ^ (digest >> 29);
}

}  // namespace oslo
