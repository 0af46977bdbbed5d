#pragma once

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/support/catalogue.h"

// The catalogue's models in Colossal-AI's tensor modes, against one device.
namespace catalogue {

inline Mesh in_mode(int tensor, int data, const char* mode) {
  return {tensor, data, true, false, mode};
}

/// A mode for each model.
inline std::vector<std::tuple<Entry (*)(), Mesh>> in_modes(const std::vector<Entry (*)()>& entries,
                                                           size_t first = 0) {
  return in_turn(entries,
                 {in_mode(2, 1, "sequence"), in_mode(4, 1, "2d"), in_mode(3, 1, "sequence"),
                  in_mode(8, 1, "3d"), in_mode(2, 2, "sequence"), in_mode(8, 1, "2.5d")},
                 first);
}

/// The modes of weights, for models without a sequence that is worth cutting.
inline std::vector<std::tuple<Entry (*)(), Mesh>> in_grids(const std::vector<Entry (*)()>& entries,
                                                           size_t first = 0) {
  return in_turn(entries, {in_mode(4, 1, "2d"), in_mode(8, 1, "3d"), in_mode(8, 1, "2.5d")}, first);
}

/// INSTANTIATE_TEST_SUITE_P(Family, InAMode, ValuesIn(in_modes({entries...})), case_name);
class InAMode : public testing::TestWithParam<std::tuple<Entry (*)(), Mesh>> {};

TEST_P(InAMode, EqualsOneDevice) {
  expect_entry(std::get<0>(GetParam())(), std::get<1>(GetParam()));
}

/// Models of which a rank would keep no less with their inputs cut.
class WithoutContext : public testing::TestWithParam<Entry (*)()> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WithoutContext);

TEST_P(WithoutContext, IsRefusedByNameOnEveryRank) {
  for (const int ranks : {2, 3}) {
    expect_refused(GetParam()(), in_mode(ranks, 1, "sequence"), "so that a rank keeps less");
  }
}

}  // namespace catalogue
