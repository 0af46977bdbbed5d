#include "checkpoint/storage/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "checkpoint/storage/file_io.h"

namespace oslo {
namespace {

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

}  // namespace

void Sha256::compress(const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = load_big_endian(block + 4 * i);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15];
    const uint32_t b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t t2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> add = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) {
    state_[i] += add[i];
  }
}

void Sha256::update(const void* data, size_t bytes) {
  if (bytes == 0) {
    return;
  }
  const auto* from = static_cast<const uint8_t*>(data);
  const size_t held = length_ % 64;
  length_ += bytes;
  if (held > 0) {
    const size_t taken = std::min(bytes, 64 - held);
    std::memcpy(pending_.data() + held, from, taken);
    if (held + taken < 64) {
      return;
    }
    compress(pending_.data());
    from += taken;
    bytes -= taken;
  }
  for (; bytes >= 64; from += 64, bytes -= 64) {
    compress(from);
  }
  std::memcpy(pending_.data(), from, bytes);
}

std::string Sha256::hex() {
  const uint64_t bits = length_ * 8;
  const size_t held = length_ % 64;
  // One bit 1, zeros, and the length in bits fill the last block.
  std::array<uint8_t, 72> tail = {0x80};
  const size_t zeros = held < 56 ? 56 - held : 120 - held;
  for (size_t i = 0; i < 8; ++i) {
    tail[zeros + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  }
  update(tail.data(), zeros + 8);

  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) {
      text.push_back(kDigits[(word >> shift) & 0xF]);
    }
  }
  return text;
}

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  return sha256_file(InputFile(path));
}

std::string sha256_file(const InputFile& file) {
  std::vector<char> buffer(1 << 20);
  Sha256 hash;
  for (uint64_t at = 0; at < file.size();) {
    const uint64_t bytes = std::min<uint64_t>(buffer.size(), file.size() - at);
    file.read(buffer.data(), bytes, at);
    hash.update(buffer.data(), bytes);
    at += bytes;
  }
  return hash.hex();
}

}  // namespace oslo
