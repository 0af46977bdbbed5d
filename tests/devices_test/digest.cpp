// The digest that is computed where a tensor is.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <set>

#include "mpu/group/device_digest.h"

namespace oslo {
namespace {

TEST(DeviceDigest, IsTheSameForTheSameBytes) {
  const at::Tensor numbers = at::arange(1000, at::kFloat);
  EXPECT_EQ(device_digest(numbers), device_digest(numbers.clone()));
  EXPECT_EQ(device_digest(numbers), device_digest(numbers.view({10, 100})));
  // A view that begins between two words.
  const at::Tensor bytes = at::arange(100, at::kByte);
  EXPECT_EQ(device_digest(bytes.narrow(0, 3, 50)), device_digest(bytes.narrow(0, 3, 50).clone()));
}

TEST(DeviceDigest, TellsAnyChange) {
  std::set<uint64_t> seen;
  const auto expect_new = [&](const at::Tensor& tensor) {
    EXPECT_TRUE(seen.insert(device_digest(tensor)).second) << tensor.sizes();
  };
  const at::Tensor bytes = at::arange(1, 22, at::kByte);
  for (int64_t size = 1; size <= 21; ++size) expect_new(bytes.narrow(0, 0, size));
  for (int64_t i = 0; i < 21; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      at::Tensor changed = bytes.clone();
      changed[i].bitwise_xor_(1 << bit);
      expect_new(changed);
    }
  }
  expect_new(bytes.flip(0).contiguous());
  for (int64_t size = 1; size <= 17; ++size) expect_new(at::zeros({size}, at::kByte));
  at::Tensor exchanged = at::arange(1, 5, at::kLong);
  expect_new(exchanged);
  expect_new(at::tensor({2L, 1L, 3L, 4L}));
  expect_new(at::complex(at::ones({3}), at::zeros({3})));
}

TEST(DeviceDigest, GoesPieceByPiece) {
  const int64_t size = (int64_t{1} << 22) + 3;  // words: more than one piece
  at::Tensor numbers = at::arange(size, at::kDouble);
  const uint64_t before = device_digest(numbers);
  EXPECT_EQ(device_digest(numbers), before);
  numbers[size - 1] += 1;
  const uint64_t after = device_digest(numbers);
  EXPECT_NE(after, before);
  numbers[size - 1] -= 1;
  numbers[5] += 1;
  EXPECT_NE(device_digest(numbers), before);
  EXPECT_NE(device_digest(numbers), after);
}

}  // namespace
}  // namespace oslo
