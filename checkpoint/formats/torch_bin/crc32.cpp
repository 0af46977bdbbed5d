#include "checkpoint/formats/torch_bin/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace oslo {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are taken at once");

constexpr size_t kStep = 8;
using Tables = std::array<std::array<uint32_t, 256>, kStep>;

/// Table k has the remainder of a byte that k zero bytes follow.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? 0xEDB88320u : 0);
    tables[0][byte] = rest;
  }
  for (size_t k = 1; k < kStep; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t rest = tables[k - 1][byte];
      tables[k][byte] = (rest >> 8) ^ tables[0][rest & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32(const void* data, size_t bytes, uint32_t before) {
  const auto* from = static_cast<const uint8_t*>(data);
  uint32_t crc = ~before;
  for (; bytes >= kStep; from += kStep, bytes -= kStep) {
    uint64_t word = 0;
    std::memcpy(&word, from, kStep);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < kStep; ++k) crc ^= kTables[kStep - 1 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; bytes > 0; ++from, --bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *from) & 0xFF];
  return ~crc;
}

}  // namespace oslo
