#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/zero_training.h"

// The catalogue's models with ZeRO in the config, at each stage.
namespace catalogue {

struct ZeroEntry {
  Entry (*entry)();
  ZeroTraining how = {};
  bool (*is_there)() = [] { return true; };  ///< what it is made of, on this machine
};

using ZeroParameter = std::tuple<ZeroEntry, int>;

/// A stage for each model, all of them under OSLO_TEST_PAIRS. `first`: so many models of other
/// programs have had theirs.
inline std::vector<ZeroParameter> at_stages(const std::vector<ZeroEntry>& entries, size_t first) {
  const bool all = std::getenv("OSLO_TEST_PAIRS") != nullptr;
  std::vector<ZeroParameter> chosen;
  for (size_t i = 0; i < entries.size(); ++i) {
    for (int stage = 1; stage <= 3; ++stage) {
      if (all || static_cast<size_t>(stage) == 3 - (first + i) % 3) {
        chosen.emplace_back(entries[i], stage);
      }
    }
  }
  return chosen;
}

/// INSTANTIATE_TEST_SUITE_P(Family, AtAStage, ValuesIn(at_stages({entries...}, first)),
///                          zero_case_name);
class AtAStage : public testing::TestWithParam<ZeroParameter> {};

TEST_P(AtAStage, TrainsAsReplicasByHand) {
  const auto& [entry, stage] = GetParam();
  if (!entry.is_there()) GTEST_SKIP() << "what the model is made of is not on this machine";
  expect_zero(entry.entry(), stage, entry.how);
}

inline std::string zero_case_name(const testing::TestParamInfo<ZeroParameter>& info) {
  return std::get<0>(info.param).entry().name + "_stage" + std::to_string(std::get<1>(info.param));
}

}  // namespace catalogue
