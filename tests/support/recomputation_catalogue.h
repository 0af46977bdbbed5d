#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/recomputed_training.h"

// The catalogue's models with recomputation in the config.
namespace catalogue {

using RunsIn = bool (*)(const RecomputedCase&);

/// Of models that pipeline stages refuse.
inline bool on_one_stage(const RecomputedCase& how) {
  return how.grid.pipeline == 1;
}
/// Of models whose batch has one size.
inline bool in_one_part(const RecomputedCase& how) {
  return how.parts() == 1;
}

using RecomputedParameter = std::tuple<Entry (*)(), RecomputedCase>;

/// A case for each model, all of them under OSLO_TEST_PAIRS. `first`: so many models of other
/// programs have had theirs. `runs`: the cases that they can run in.
inline std::vector<RecomputedParameter> recomputed(const std::vector<Entry (*)()>& entries,
                                                   size_t first, RunsIn runs = nullptr) {
  std::vector<RecomputedCase> cases = recomputed_cases();
  std::erase_if(cases, [&](const RecomputedCase& each) { return runs && !runs(each); });
  std::vector<RecomputedParameter> chosen;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (std::getenv("OSLO_TEST_PAIRS") == nullptr) {
      // Each form, type and grid comes as often as the others.
      chosen.emplace_back(entries[i], cases[(first + i) * 29 % cases.size()]);
      continue;
    }
    for (const RecomputedCase& each : cases) chosen.emplace_back(entries[i], each);
  }
  return chosen;
}

/// INSTANTIATE_TEST_SUITE_P(Family, Recomputed, ValuesIn(recomputed({entries...}, first)),
///                          recomputed_case_name);
class Recomputed : public testing::TestWithParam<RecomputedParameter> {};

TEST_P(Recomputed, TrainsAsThePlainModel) {
  expect_recomputed(std::get<0>(GetParam())(), std::get<1>(GetParam()));
}

inline std::string recomputed_case_name(const testing::TestParamInfo<RecomputedParameter>& info) {
  return std::get<0>(info.param)().name + "_" + std::get<1>(info.param).name();
}

}  // namespace catalogue
