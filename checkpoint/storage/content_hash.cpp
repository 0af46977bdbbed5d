#include "checkpoint/storage/content_hash.h"

// The functions become part of this file: whoever installs this library needs no other.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace oslo {

struct ContentHash::State {
  XXH3_state_t xxh;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}

ContentHash::~ContentHash() = default;

void ContentHash::update(const void* data, uint64_t bytes) {
  if (bytes > 0) XXH3_128bits_update(&state_->xxh, data, bytes);
}

std::string ContentHash::hex() const {
  XXH128_canonical_t digits;
  XXH128_canonicalFromHash(&digits, XXH3_128bits_digest(&state_->xxh));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digits.digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 0xF]);
  }
  return text;
}

}  // namespace oslo
