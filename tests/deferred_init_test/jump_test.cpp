// The generator's state after many numbers, without drawing them.
#include <gtest/gtest.h>

#include "parallelizers/deferred/mt19937_jump.h"

namespace {

void expect_same(const at::mt19937& actual, const at::mt19937& expected) {
  const auto a = actual.data(), b = expected.data();
  EXPECT_EQ(a.state_, b.state_);
  EXPECT_EQ(a.next_, b.next_);
  EXPECT_EQ(a.left_, b.left_);
  EXPECT_EQ(a.seed_, b.seed_);
}

TEST(Mt19937Jump, IsDrawing) {
  for (const uint64_t before : {0, 1, 623, 624, 625, 1000}) {
    for (const uint64_t words :
         {0ul, 1ul, 624ul, 625ul, 2097152ul, 2097153ul, 4000000ul, 3744624ul}) {
      at::mt19937 drawn(42);
      for (uint64_t i = 0; i < before; ++i) drawn();
      at::mt19937 jumped = drawn;
      for (uint64_t i = 0; i < words; ++i) drawn();
      oslo::advance(jumped, words);
      expect_same(jumped, drawn);
    }
  }
}

TEST(Mt19937Jump, TwoJumpsAreOne) {
  at::mt19937 once(7), twice(7);
  oslo::advance(once, 1ul << 50);
  oslo::advance(twice, (1ul << 49) + 12345);
  oslo::advance(twice, (1ul << 49) - 12345);
  expect_same(twice, once);
  EXPECT_EQ(twice(), once());
}

}  // namespace
