// What a config may say but the library cannot do yet.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oslo_cpp/config/config.h"
#include "tests/config_test/config_errors.h"

namespace oslo::config_test {
namespace {

using ::testing::TestWithParam;
using ::testing::Values;

struct Refused {
  const char* text;
  int world_size;
  std::vector<std::string> parts;
};

class ConfigRefused : public TestWithParam<Refused> {};

// Parsing accepts what is not there yet; resolving names it and says what to set instead.
TEST_P(ConfigRefused, NotThereYet) {
  std::string message = resolve_error(GetParam().text, GetParam().world_size);
  expect_contains(message, GetParam().parts);
  expect_contains(message, {"is not there yet: set "});
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigRefused,
    Values(Refused{R"({"parallel": {}, "gradient_handler": [{"type": "ZeROGradientHandler"}]})",
                   2,
                   {"'gradient_handler' of type ZeROGradientHandler",
                    "set the type to DataParallelGradientHandler"}}));

TEST(Config, ZeroInEveryDialect) {
  for (const char* text :
       {R"({"train": {"zero_optimization": {"enabled": true}}})",
        R"({"zero_optimization": {"enabled": true, "stage": 1}})",
        R"({"zero_optimization": {"enabled": true}, "parallel": {"tensor": 1}})",
        R"({"zero_optimization": {"enabled": true}, "model_parallelism": {"enable": true}})"}) {
    const Config config = Config::parse(text);
    config.resolve(2);
    EXPECT_TRUE(config.values().zero_optimization) << text;
    EXPECT_EQ(config.values().zero_stage, 1) << text;
  }
  for (const int stage : {2, 3}) {
    const std::string keys =
        c10::str(R"("zero_optimization": {"enabled": true, "reshard": false, "shard_size": 2, )",
                 R"("copies_per_host": 1, "stage": )", stage, "}");
    for (const std::string& text : {"{" + keys + "}", R"({"train": {)" + keys + "}}"}) {
      const Config config = Config::parse(text);
      config.resolve(2);
      EXPECT_EQ(config.values().zero_stage, stage) << text;
      EXPECT_EQ(config.values().zero_reshard, false) << text;
      EXPECT_EQ(config.values().zero_shard_size, 2) << text;
      EXPECT_EQ(config.values().zero_copies_per_host, 1) << text;
    }
  }
}

TEST(Config, WhatIsOffIsAccepted) {
  EXPECT_EQ(Config::parse(R"({"train": {"zero_optimization": {"enabled": false, "stage": 1},
      "amp": {"enabled": false}, "activation_checkpoint": {"enabled": false},
      "num_accumulation_steps": 1}})")
                .resolve(2)
                .data,
            2);
  EXPECT_EQ(Config::parse(R"({"parallel": {"tensor": {"size": 1, "mode": "sequence"}}})")
                .resolve(2)
                .tensor_mode,
            "sequence");
}

TEST(Config, OfAnEngineIsColossalAIs) {
  Config config = Config::parse(R"({"parallel": {}, "gradient_accumulation": 4,
      "clip_grad_norm": 0.5, "NUM_MICRO_BATCHES": 8, "gradient_handler": [
      {"type": "DataParallelGradientHandler"}, {"type": "PipelineSharedModuleGradientHandler"}]})");
  EXPECT_EQ(config.resolve(2).data, 2);
  const EngineKeys& engine = config.values().engine;
  EXPECT_EQ(engine.gradient_accumulation, 4);
  EXPECT_EQ(engine.clip_grad_norm, 0.5);
  EXPECT_EQ(engine.gradient_handlers.size(), 2u);
  EXPECT_EQ(engine.gradient_handlers.back(), "PipelineSharedModuleGradientHandler");
  EXPECT_EQ(config.values().num_accumulation_steps, 8);
  config.set("gradient_accumulation=2");
  EXPECT_EQ(config.values().engine.gradient_accumulation, 2);
  expect_contains(parse_error(R"({"train": {}, "clip_grad_norm": 1})"),
                  {"unknown key 'clip_grad_norm'"});
}

TEST(Config, AnEnginesKeysAreChecked) {
  const auto error = [](const std::string& more) {
    return parse_error(R"({"parallel": {}, )" + more + "}");
  };
  for (const char* wrong : {"-1", "true", "\"1.0\"", "null"}) {
    expect_contains(error(c10::str(R"("clip_grad_norm": )", wrong)),
                    {"'clip_grad_norm': expected a number from 0; seen "});
  }
  expect_contains(error(R"("gradient_handler": "DataParallelGradientHandler")"),
                  {"'gradient_handler': expected an array of objects"});
  expect_contains(error(R"("gradient_handler": [{}])"), {"'gradient_handler[0]' has no type"});
  expect_contains(
      error(R"("gradient_handler": [{"type": "Mine"}])"),
      {"'gradient_handler[0].type': expected one of DataParallelGradientHandler, ", "\"Mine\""});
  expect_contains(error(R"("gradient_handler": [{"kind": "Mine"}])"),
                  {"unknown key 'gradient_handler[0].kind'", "'type'"});
  expect_contains(error(R"("NUM_MICRO_BATCHES": 4, "num_accumulation_steps": 4)"),
                  {"'NUM_MICRO_BATCHES' and 'num_accumulation_steps'", "keep one"});
}

TEST(Config, StageIdsMustFit) {
  auto error = [](const std::string& dist) {
    return resolve_error(R"({"train": {"dist": {)" + dist + "}}}", 2);
  };
  const std::string two = R"("pipeline_parallel_size": 2, "custom_pipeline_stage_id": )";
  expect_contains(error(two + R"([0, 1], "pipeline_num_layers": 3)"), {"2 entries", "is 3"});
  expect_contains(error(two + "[0, 2]"), {"layer 1 on stage 2", "= 2", "last stage is 1"});
  expect_contains(error(two + "[0, 1, 0]"), {"0 after 1 at layer 2"});
  expect_contains(error(two + "[1, 1]"), {"1 first at layer 0"});
  expect_contains(error(two + "[0, 0]"), {"stage 1 without a layer"});
  expect_contains(error(two + "[]"), {"without a layer"});
  EXPECT_EQ(Config::parse(R"({"train": {"dist": {)" + two + "[0, 0, 1]}}}").resolve(4).pipeline, 2);
}

TEST(Config, APipelineOfLiBaisNeedsTheNumberOfLayers) {
  expect_contains(resolve_error(R"({"train": {"dist": {"pipeline_parallel_size": 2}}})", 2),
                  {"'train.dist.pipeline_parallel_size' = 2", "'train.dist.pipeline_num_layers'"});
  const auto sizes = Config::parse(R"({"train": {"num_accumulation_steps": 8, "dist": {
      "pipeline_parallel_size": 2, "pipeline_num_layers": 6}}})")
                         .resolve(4);
  EXPECT_EQ(sizes.pipeline, 2);
  EXPECT_EQ(sizes.data, 2);
  for (const char* text : {R"({"model_parallelism": {"pipeline_parallel_size": 2}})",
                           R"({"parallel": {"pipeline": {"size": 2}}})"}) {
    EXPECT_EQ(Config::parse(text).resolve(6).pipeline, 2);
  }
}

TEST(Config, EveryDialectAccumulates) {
  for (const char* text :
       {R"({"train": {"num_accumulation_steps": 8}})", R"({"num_accumulation_steps": 8})",
        R"({"num_accumulation_steps": 8, "parallel": {"pipeline": 1}})",
        R"({"num_accumulation_steps": 8, "model_parallelism": {"tensor_parallel_size": 2}})"}) {
    const Config config = Config::parse(text);
    EXPECT_EQ(config.values().num_accumulation_steps, 8) << text;
    config.resolve(2);
  }
  expect_contains(parse_error(R"({"train": {}, "num_accumulation_steps": 8})"),
                  {"unknown key 'num_accumulation_steps'", "'train.num_accumulation_steps'"});
  expect_contains(parse_error(R"({"num_accumulation_steps": 0})"), {"an integer from 1"});
}

TEST(Config, StagesMayBeBalanced) {
  Config config = Config::parse(R"({"balance_stages": "time", "parallel": {"pipeline": 2}})");
  EXPECT_EQ(config.values().balance_stages, "time");
  config.set("balance_stages=memory");
  EXPECT_EQ(config.values().balance_stages, "memory");
  expect_contains(parse_error(R"({"balance_stages": "parameters"})"),
                  {"'balance_stages'", "one of time, memory", "\"parameters\""});
}

TEST(Config, StagesByPatterns) {
  Config config = Config::parse(R"({"stages": {"h.0-5.*": 0, "wte": [0, 1]}})");
  config.set("stages.h.6-11=1");
  const auto& stages = config.values().stages;
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0], std::pair(std::string("h.0-5.*"), std::vector{0}));
  EXPECT_EQ(stages[1], std::pair(std::string("wte"), std::vector{0, 1}));
  EXPECT_EQ(stages[2], std::pair(std::string("h.6-11"), std::vector{1}));
  expect_contains(parse_error(R"({"stages": {"h..0": 0}})"), {"stages pattern 'h..0'", "empty"});
  expect_contains(parse_error(R"({"stages": {"h": -1}})"), {"stages pattern 'h'", "from 0 to 63"});
  expect_contains(parse_error(R"({"stages": {"h": []}})"), {"stages pattern 'h'", "an array"});
  expect_contains(parse_error(R"({"stages": {"h": "0"}})"), {"stages pattern 'h'", "\"0\""});
  expect_contains(parse_error(R"({"stages": 1})"), {"'stages'", "an object"});
}

}  // namespace
}  // namespace oslo::config_test
