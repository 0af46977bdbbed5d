#pragma once

#include <cstdint>
#include <string_view>

namespace oslo {

/// `digest` with one more word taken in. For comparing ranks and runs, not against an adversary.
/// The same in every build, as std::hash is not.
inline uint64_t mix(uint64_t digest, uint64_t word) {
  digest = (digest ^ word) * 0x9E3779B97F4A7C15ull;
  return digest ^ (digest >> 29);
}

/// A digest of a text.
inline uint64_t digest_of(std::string_view text) {
  uint64_t digest = text.size();
  for (const char letter : text) digest = mix(digest, static_cast<unsigned char>(letter));
  return digest;
}

}  // namespace oslo
