#pragma once

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/support/catalogue.h"

// The catalogue's models with "sequence_parallel" in the config, against one device.
namespace catalogue {

/// A mesh for each model.
inline std::vector<std::tuple<Entry (*)(), Mesh>> along_sequence(
    const std::vector<Entry (*)()>& entries, size_t first = 0) {
  return in_turn(entries, {{2, 1, true, true}, {3, 1, true, true}, {2, 2, true, true}}, first);
}

/// INSTANTIATE_TEST_SUITE_P(Family, CutAlongSequence, ValuesIn(along_sequence({entries...})),
///                          case_name);
class CutAlongSequence : public testing::TestWithParam<std::tuple<Entry (*)(), Mesh>> {};

TEST_P(CutAlongSequence, EqualsOneDevice) {
  expect_entry(std::get<0>(GetParam())(), std::get<1>(GetParam()));
}

/// Models in which nothing could be cut along a sequence.
class WithoutSequence : public testing::TestWithParam<Entry (*)()> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WithoutSequence);

TEST_P(WithoutSequence, IsRefusedByNameOnEveryRank) {
  expect_refused(GetParam()(), {2, 1, true, true},
                 "'sequence_parallel' = true: the result of no layer of this model");
}

}  // namespace catalogue
