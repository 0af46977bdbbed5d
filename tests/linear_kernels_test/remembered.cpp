// What cuBLASLt's heuristics chose is looked for once a shape, also where they found nothing.
#include "parallelizers/kernels/remembered.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

namespace oslo {
namespace {

TEST(Remembered, EachKeyIsLookedForOnce) {
  Remembered<int, int> squares;
  int looks = 0;
  const auto square = [&](int key) {
    return squares.get(key, [&] {
      ++looks;
      return key * key;
    });
  };
  EXPECT_EQ(square(3), 9);
  EXPECT_EQ(square(4), 16);
  EXPECT_EQ(square(3), 9);
  EXPECT_EQ(looks, 2);
}

/// An unknown key, and a known one of which there is nothing, are two things.
TEST(Remembered, NothingIsAnAnswerToo) {
  Remembered<int, std::optional<int>> halves;
  int looks = 0;
  const auto half = [&](int key) {
    return halves.get(key, [&] {
      ++looks;
      return key % 2 == 0 ? std::optional(key / 2) : std::nullopt;
    });
  };
  EXPECT_EQ(half(6), std::optional(3));
  EXPECT_EQ(half(7), std::nullopt);
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(half(6), std::optional(3));
  EXPECT_EQ(half(7), std::nullopt);
  EXPECT_EQ(looks, 2);
}

TEST(Remembered, WhatThrowsIsLookedForAgain) {
  Remembered<int, int> values;
  const auto fails = []() -> int { throw std::runtime_error("out of memory"); };
  EXPECT_THROW(values.get(1, fails), std::runtime_error);
  EXPECT_EQ(values.get(1, [] { return 5; }), 5);
}

}  // namespace
}  // namespace oslo
