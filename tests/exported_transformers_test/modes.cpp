// Models of Python's transformers in Colossal-AI's tensor modes, and with their stream cut along
// the sequence, trained as in Python.
#include <gtest/gtest.h>

#include <cstdlib>
#include <tuple>

#include "tests/exported_transformers_test/exported_families.h"

namespace oslo::test {
namespace {

struct Family {
  const char* name;
  Training (*training)();
};

const Family kFamilies[] = {
    {"gpt2", without_dropout},   {"gpt2_labels", with_its_own_loss},
    {"bert", without_dropout},   {"llama", with_parts_in_float},
    {"t5", with_parts_in_float}, {"mixtral", with_parts_in_float},
};

struct Mode {
  const char* name;
  int ranks;
  const char* config;
};

const Mode kModes[] = {
    {"2d", 4, R"({"parallel": {"tensor": {"size": 4, "mode": "2d"}}})"},
    {"context_2", 2, R"({"context_parallel_size": 2})"},
    {"3d", 8, R"({"parallel": {"tensor": {"size": 8, "mode": "3d"}}})"},
    {"context_3_head_tail", 3, R"({"context_parallel_size": 3, "context_order": "head_tail"})"},
    {"2p5d", 8, R"({"parallel": {"tensor": {"size": 8, "mode": "2.5d", "depth": 2}}})"},
    {"sequence_parallel_2", 2, R"({"model_parallelism": {"enable": true,
        "tensor_parallel_size": 2}, "sequence_parallel": true})"},
};

/// Two modes for each family, one of a grid and one of a sequence; all of them under
/// OSLO_TEST_PAIRS.
std::vector<std::tuple<Family, Mode>> cases() {
  std::vector<std::tuple<Family, Mode>> chosen;
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    for (size_t k = 0; k < std::size(kModes); ++k) {
      const bool in_turn = k == i || k == (i + 3) % std::size(kModes);
      if (!in_turn && std::getenv("OSLO_TEST_PAIRS") == nullptr) continue;
      chosen.emplace_back(kFamilies[i], kModes[k]);
    }
  }
  return chosen;
}

class ExportedInAMode : public testing::TestWithParam<std::tuple<Family, Mode>> {};
INSTANTIATE_TEST_SUITE_P(Transformers, ExportedInAMode, testing::ValuesIn(cases()),
                         [](const auto& info) {
                           return c10::str(std::get<0>(info.param).name, "_",
                                           std::get<1>(info.param).name);
                         });

TEST_P(ExportedInAMode, TrainsAsInPython) {
  OSLO_NEEDS_TRANSFORMERS();
  const auto& [family, mode] = GetParam();
  expect_python(run_of(family.name), {1, mode.ranks, mode.config}, family.training());
}

}  // namespace
}  // namespace oslo::test
