#include "parallelizers/deferred/mt19937_jump.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <vector>

namespace oslo {
namespace {

constexpr int kBlock = at::MERSENNE_STATE_N;
/// Of the characteristic polynomial: 624 x 32 bits without the 31 that no number depends on.
constexpr int kDegree = 19937;
constexpr int kWords = kDegree / 64 + 1;
constexpr int kTopBits = kDegree % 64;

/// Fewer numbers are drawn one by one.
constexpr uint64_t kFew = uint64_t{1} << 21;

/// A polynomial over the field of two elements, of a degree below kDegree: bit i is t^i's.
using Polynomial = std::array<uint64_t, kWords>;
using Product = std::array<uint64_t, 2 * kWords>;

/// The exponents of the characteristic polynomial below its degree. With A = t^624 + t^397,
/// B = t^623 + t^396 and the bits a_i of the twist it is A (B^31 + a_0 B^30 + .. + a_30) + a_31
/// (M. Matsumoto, T. Nishimura: Mersenne Twister, 1998, appendix A).
std::vector<int> lower_exponents() {
  std::bitset<kDegree + 1> sum;
  sum[0] = true;
  for (int i = 0; i < 31; ++i) {
    sum = (sum << 623) ^ (sum << 396);
    if ((at::MATRIX_A >> i) & 1) sum.flip(0);
  }
  sum = (sum << 624) ^ (sum << 397);
  if (at::MATRIX_A >> 31) sum.flip(0);
  std::vector<int> exponents;
  for (int i = 0; i < kDegree; ++i) {
    if (sum[i]) exponents.push_back(i);
  }
  return exponents;
}

void add_shifted(Product& sum, uint64_t word, int bits) {
  sum[bits / 64] ^= word << (bits % 64);
  if (bits % 64 != 0) sum[bits / 64 + 1] ^= word >> (64 - bits % 64);
}

/// The remainder. Below its degree the characteristic polynomial has 623 zeros, so that what a word
/// is replaced by lies below that word.
Polynomial reduced(Product& product) {
  static const std::vector<int> exponents = lower_exponents();
  for (int i = 2 * kWords - 1; i >= kWords; --i) {
    for (const int exponent : exponents) {
      add_shifted(product, product[i], 64 * i - kDegree + exponent);
    }
    product[i] = 0;
  }
  const uint64_t above = product[kWords - 1] >> kTopBits;
  product[kWords - 1] &= (uint64_t{1} << kTopBits) - 1;
  for (const int exponent : exponents) add_shifted(product, above, exponent);
  Polynomial result;
  std::copy(product.begin(), product.begin() + kWords, result.begin());
  return result;
}

/// The low 32 bits with a zero behind each.
uint64_t spread(uint64_t bits) {
  bits &= 0xFFFFFFFFull;
  bits = (bits | (bits << 16)) & 0x0000FFFF0000FFFFull;
  bits = (bits | (bits << 8)) & 0x00FF00FF00FF00FFull;
  bits = (bits | (bits << 4)) & 0x0F0F0F0F0F0F0F0Full;
  bits = (bits | (bits << 2)) & 0x3333333333333333ull;
  return (bits | (bits << 1)) & 0x5555555555555555ull;
}

Polynomial squared(const Polynomial& value) {
  Product product{};
  for (int i = 0; i < kWords; ++i) {
    product[2 * i] = spread(value[i]);
    product[2 * i + 1] = spread(value[i] >> 32);
  }
  return reduced(product);
}

Polynomial times_t(const Polynomial& value) {
  Product product{};
  for (int i = 0; i < kWords; ++i) add_shifted(product, value[i], 64 * i + 1);
  return reduced(product);
}

/// t^exponent.
Polynomial power_of_t(uint64_t exponent) {
  Polynomial power{1};
  for (int bit = 63; bit >= 0; --bit) {
    power = squared(power);
    if ((exponent >> bit) & 1) power = times_t(power);
  }
  return power;
}

/// The block that comes `words` numbers after `block`, a multiple of its size.
std::array<uint32_t, kBlock> block_after(const std::array<uint32_t, kBlock>& block,
                                         uint64_t words) {
  std::vector<uint32_t> sequence(block.begin(), block.end());
  sequence.resize(kDegree + kBlock);
  for (int i = kBlock; i < kDegree + kBlock; ++i) {
    const uint32_t mixed =
        (sequence[i - kBlock] & at::UMASK) | (sequence[i - kBlock + 1] & at::LMASK);
    sequence[i] = sequence[i - kBlock + at::MERSENNE_STATE_M] ^ (mixed >> 1) ^
                  ((mixed & 1) != 0 ? at::MATRIX_A : 0);
  }
  const Polynomial power = power_of_t(words);
  std::array<uint32_t, kBlock> result{};
  for (int i = 0; i < kDegree; ++i) {
    if (((power[i / 64] >> (i % 64)) & 1) == 0) continue;
    for (int j = 0; j < kBlock; ++j) result[j] ^= sequence[i + j];
  }
  return result;
}

}  // namespace

void advance(at::mt19937& engine, uint64_t words) {
  // A seed's block is not one that the recurrence made: one block is drawn in any case.
  const uint64_t drawn = words < kFew ? words : kBlock + 1;
  for (uint64_t i = 0; i < drawn; ++i) engine();
  words -= drawn;
  if (words == 0) return;
  at::mt19937_data_pod data = engine.data();
  const uint64_t end = data.next_ + words;
  const uint64_t skipped = (end - 1) / kBlock * kBlock;
  if (skipped > 0) data.state_ = block_after(data.state_, skipped);
  data.next_ = static_cast<uint32_t>(end - skipped);
  data.left_ = kBlock + 1 - static_cast<int>(data.next_);
  engine.set_data(data);
}

}  // namespace oslo
