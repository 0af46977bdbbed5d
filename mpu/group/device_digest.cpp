#include "mpu/group/device_digest.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "mpu/base/digest.h"
#include "mpu/base/parts.h"

namespace oslo {
namespace {

constexpr int64_t kWordsAtOnce = int64_t{1} << 22;

/// Odd, so that multiplying loses no bit; as signed numbers, which is what tensors have.
constexpr auto kPlace = static_cast<int64_t>(0x9E3779B97F4A7C15ull);
constexpr auto kFirst = static_cast<int64_t>(0xBF58476D1CE4E5B9ull);
constexpr auto kSecond = static_cast<int64_t>(0x94D049BB133111EBull);

/// As splitmix64 ends: every bit of a word changes half of the others.
at::Tensor mixed(at::Tensor words) {
  words.bitwise_xor_(words.bitwise_right_shift(30)).mul_(kFirst);
  words.bitwise_xor_(words.bitwise_right_shift(27)).mul_(kSecond);
  return words.bitwise_xor_(words.bitwise_right_shift(31));
}

}  // namespace

uint64_t device_digest(const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  const at::Tensor bytes = parts::as_real(tensor).reshape({-1}).view(at::kByte);
  const int64_t size = bytes.numel(), words = size / 8;
  at::Tensor sum = at::zeros({}, bytes.options().dtype(at::kLong));
  const auto add = [&](const at::Tensor& part, int64_t first) {
    const int64_t count = part.numel();
    at::Tensor place = at::arange(first + 1, first + 1 + count, part.options()).mul_(kPlace);
    sum.add_(mixed(mixed(std::move(place)).bitwise_xor_(part)).sum());
  };
  // Bytes of a view may begin between two words.
  const auto as_words = [](const at::Tensor& part) { return part.clone().view(at::kLong); };
  for (int64_t first = 0; first < words; first += kWordsAtOnce) {
    const int64_t count = std::min(kWordsAtOnce, words - first);
    add(as_words(bytes.narrow(0, first * 8, count * 8)), first);
  }
  if (size > words * 8) {
    at::Tensor tail = at::zeros({8}, bytes.options());
    tail.narrow(0, 0, size - words * 8).copy_(bytes.narrow(0, words * 8, size - words * 8));
    add(tail.view(at::kLong), words);
  }
  return mix(static_cast<uint64_t>(size), static_cast<uint64_t>(sum.item<int64_t>()));
}

}  // namespace oslo
