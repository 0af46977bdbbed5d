// Configs that are refused when they are read, or do not fit the world.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oslo_cpp/config/config.h"
#include "tests/config_test/config_errors.h"

namespace oslo::config_test {
namespace {

using ::testing::TestWithParam;
using ::testing::Values;

TEST(Config, PlanIsStrict) {
  expect_contains(parse_error(R"({"plan": {"wte": "columns"}})"),
                  {"'wte'", "column, row, vocab, replicate", "\"columns\""});
  expect_contains(parse_error(R"({"plan": {"h..attn": "row"}})"), {"'h..attn'", "empty"});
  expect_contains(parse_error(R"({"plan": {"": "row"}})"), {"''", "empty"});
  expect_contains(parse_error(R"({"plan": {"h.c_*": "row"}})"), {"'h.c_*'", "'c_*'", "whole"});
  expect_contains(parse_error(R"({"plan": ["row"]})"), {"'plan'", "an array of 1 element"});
}

TEST(Config, UnknownKeyNamesPathAndNearest) {
  expect_contains(parse_error(R"({"train": {"dist": {"tensor_paralel_size": 2}}})"),
                  {"'train.dist.tensor_paralel_size'", "'train.dist'", "'tensor_parallel_size'"});
  expect_contains(parse_error(R"({"model_paralelism": {}})"), {"'model_parallelism'"});
  expect_contains(parse_error(R"({"model_parallelism": {"enabled": true}})"),
                  {"'model_parallelism.enabled'", "'enable'"});
  expect_contains(parse_error(R"({"parallel": {"tensor": {"size": 1, "mod": "1d"}}})"),
                  {"'parallel.tensor.mod'", "'mode'"});
  expect_contains(parse_error(R"({"parallel": {"pipeline": {"sise": 1}}})"),
                  {"'parallel.pipeline.sise'", "'size'"});
  expect_contains(
      parse_error(
          R"({"parallel": {"tensor": {"size": 8, "mode": "2.5d", "kwargs": {"deep": 2}}}})"),
      {"'parallel.tensor.kwargs.deep'", "'depth'"});
}

TEST(Config, UnknownKeySaysWhereItBelongs) {
  expect_contains(
      parse_error(R"({"tensor_parallel_size": 2})"),
      {"'model_parallelism.tensor_parallel_size'", "'train.dist.tensor_parallel_size'"});
  expect_contains(parse_error(R"({"model_parallelism": {"data_parallel_size": 2}})"),
                  {"unknown key", "'train.dist.data_parallel_size'"});
}

TEST(Config, MixedDialectsNameBoth) {
  expect_contains(parse_error(R"({"model_parallelism": {}, "parallel": {}})"),
                  {"'model_parallelism'", "OSLO", "'parallel'", "Colossal-AI"});
  Config config = Config::parse(R"({"train": {}})");
  expect_contains(error_of([&] { config.set("parallel.pipeline=2"); }),
                  {"'train'", "LiBai", "'parallel'", "Colossal-AI"});
}

struct WrongValue {
  const char* text;
  std::vector<std::string> parts;
};

class ConfigWrongValue : public TestWithParam<WrongValue> {};

TEST_P(ConfigWrongValue, NamesPathExpectedAndSeen) {
  expect_contains(parse_error(GetParam().text), GetParam().parts);
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigWrongValue,
    Values(
        WrongValue{R"([1])", {"the config", "an object", "an array of 1 element"}},
        WrongValue{R"({"model_parallelism": null})", {"'model_parallelism'", "an object", "null"}},
        WrongValue{R"({"model_parallelism": {"enable": 1}})",
                   {"'model_parallelism.enable'", "true or false", "the integer 1"}},
        WrongValue{R"({"model_parallelism": {"tensor_parallel_size": true}})",
                   {"'model_parallelism.tensor_parallel_size'", "an integer", "the boolean true"}},
        WrongValue{R"({"model_parallelism": {"tensor_parallel_size": "2"}})",
                   {"an integer", "the string \"2\""}},
        WrongValue{R"({"model_parallelism": {"tensor_parallel_size": 2.0}})",
                   {"an integer", "the number 2.0"}},
        WrongValue{R"({"model_parallelism": {"tensor_parallel_size": 0}})",
                   {"an integer from 1", "the integer 0"}},
        WrongValue{R"({"model_parallelism": {"tensor_parallel_size": -2}})",
                   {"an integer from 1", "the integer -2"}},
        WrongValue{R"({"model_parallelism": {"tensor_parallel_size": 18446744073709551615}})",
                   {"an integer from 1", "18446744073709551615"}},
        WrongValue{R"({"model_parallelism": {"tensor_parallel_size": null}})",
                   {"an integer", "null"}},
        WrongValue{R"({"train": {"dist": {"custom_pipeline_stage_id": [0, "1"]}}})",
                   {"'train.dist.custom_pipeline_stage_id[1]'", "the string \"1\""}},
        WrongValue{R"({"train": {"zero_optimization": {"stage": 4}}})",
                   {"'train.zero_optimization.stage'", "from 1 to 3", "the integer 4"}},
        WrongValue{R"({"zero_optimization": {"shard_size": 0}})",
                   {"'zero_optimization.shard_size'", "the integer 0"}},
        WrongValue{R"({"parallel": {"tensor": null}})", {"'parallel.tensor'", "null"}},
        WrongValue{R"({"parallel": {"data": "2"}})",
                   {"'parallel.data'", "or an object", "or null", "the string \"2\""}},
        WrongValue{R"({"parallel": {"tensor": {"size": 4, "mode": "2D"}}})",
                   {"'parallel.tensor.mode'", "1d, 2d, 2.5d, 3d, sequence", "\"2D\""}}));

TEST(Config, ColossalTensorNeedsAMode) {
  for (const char* text :
       {R"({"parallel": {"tensor": 4}})", R"({"parallel": {"tensor": {"size": 4}}})",
        R"({"parallel": {"tensor": {"size": 4, "mode": null}}})"}) {
    expect_contains(parse_error(text), {"'parallel.tensor'", "size 4", "no mode", "\"1d\""});
  }
  EXPECT_EQ(Config::parse(R"({"parallel": {"tensor": 1}})").resolve(2).tensor_mode, "1d");
  EXPECT_EQ(Config::parse(R"({"parallel": {"tensor": {"size": 1, "mode": null}}})").resolve(2).data,
            2);
}

TEST(Config, ColossalDepthBelongsTo2p5d) {
  expect_contains(parse_error(R"({"parallel": {"tensor": {"size": 8, "mode": "2.5d"}}})"),
                  {"2.5d", "no depth", "q * q * d"});
  expect_contains(parse_error(R"({"parallel": {"tensor": {"size": 4, "mode": "2d", "depth": 1}}})"),
                  {"depth 1", "2.5d", "the mode is 2d"});
  expect_contains(parse_error(R"({"parallel": {"tensor": {"size": 8, "mode": "2.5d", "depth": 2,
                                                          "kwargs": {"depth": 2}}}})"),
                  {"'parallel.tensor.depth'", "'parallel.tensor.kwargs.depth'", "both"});
  for (const char* text :
       {R"({"parallel": {"tensor": {"size": 8, "mode": "2.5d", "depth": 2}}})",
        R"({"parallel": {"tensor": {"size": 8, "mode": "2.5d", "kwargs": {"depth": 2}}}})"}) {
    EXPECT_EQ(Config::parse(text).values().depth, 2) << text;
  }
  for (const char* text :
       {R"({"parallel": {"tensor": {"size": 4, "mode": "1d", "kwargs": null}}})",
        R"({"parallel": {"tensor": {"size": 4, "mode": "1d", "kwargs": {}}}})"}) {
    EXPECT_FALSE(Config::parse(text).values().depth) << text;
  }
}

TEST(Config, KeepGatheredBelongsToModesThatGatherAgain) {
  for (const char* mode : {"1d", "3d", "sequence"}) {
    expect_contains(parse_error(R"({"parallel": {"tensor": {"size": 8, "keep_gathered": true,
                                                            "mode": ")" +
                                std::string(mode) + "\"}}}"),
                    {"keep_gathered", "2d and 2.5d", std::string("the mode is ") + mode});
  }
  EXPECT_FALSE(Config::parse(R"({"parallel": {"tensor": {"size": 4, "mode": "2d"}}})")
                   .values()
                   .keep_gathered);
}

TEST(Config, SizedObjectNeedsASize) {
  expect_contains(parse_error(R"({"parallel": {"pipeline": {}}})"),
                  {"'parallel.pipeline'", "no size"});
  expect_contains(parse_error(R"({"parallel": {"tensor": {"mode": "1d"}}})"),
                  {"'parallel.tensor'", "no size"});
}

TEST(Config, SizesThatDoNotFitTheWorld) {
  expect_contains(
      resolve_error(R"({"model_parallelism": {"tensor_parallel_size": 3}})", 4),
      {"'model_parallelism.tensor_parallel_size' 3", "'model_parallelism.pipeline_parallel_size' 1",
       "= 3", "world size 4", "data 2 x tensor 2 x pipeline 1", "a multiple of 3 processes"});
  expect_contains(
      resolve_error(R"({"train": {"dist": {"data_parallel_size": 2, "tensor_parallel_size": 2}}})",
                    8),
      {"'train.dist.data_parallel_size' 2", "'train.dist.tensor_parallel_size' 2", "= 4",
       "world size is 8", "data 4 x tensor 2 x pipeline 1", "start 4 processes"});
  expect_contains(resolve_error(R"({"parallel": {"data": 3, "tensor": 1}})", 2),
                  {"'parallel.data' 3", "= 3", "world size is 2", "data 2 x tensor 1"});
  // More than an int holds, and a nearest choice that does not ask for what is refused.
  expect_contains(resolve_error(R"({"train": {"dist": {"data_parallel_size": 1048576,
      "tensor_parallel_size": 1048576, "pipeline_parallel_size": 1048576}}})",
                                6),
                  {"= 1152921504606846976", "data 1 x tensor 6 x pipeline 1"});
  expect_contains(error_of([] { Config().resolve(0); }), {"at least 1", "0"});
}

TEST(Config, ModesHaveAShape) {
  auto tensor = [](const std::string& inside) {
    return R"({"parallel": {"tensor": {)" + inside + "}}}";
  };
  expect_contains(resolve_error(tensor(R"("size": 8, "mode": "2d")"), 8),
                  {"2d needs a square", "seen 8", "4 or 9"});
  expect_contains(resolve_error(tensor(R"("size": 9, "mode": "3d")"), 9),
                  {"3d needs a cube", "seen 9", "8 or 27"});
  expect_contains(resolve_error(tensor(R"("size": 12, "mode": "2.5d", "depth": 2)"), 12),
                  {"q * q * depth", "seen size 12 and depth 2", "8 or 18"});
}

}  // namespace
}  // namespace oslo::config_test
