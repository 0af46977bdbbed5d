#include "oslo_cpp/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "mpu/error.h"

namespace oslo {
namespace {

using ::testing::TestWithParam;
using ::testing::Values;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string parse_error(const std::string& text) {
  return error_of([&] { Config::parse(text); });
}

std::string resolve_error(const std::string& text, int world_size) {
  Config config = Config::parse(text);
  return error_of([&] { config.resolve(world_size); });
}

void expect_contains(const std::string& message, const std::vector<std::string>& parts) {
  EXPECT_NE(message, "") << "no error was thrown";
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "no <" << part << "> in <" << message << ">";
  }
}

TEST(Config, EmptyIsValidAndEnabled) {
  for (const Config& config : {Config(), Config::parse("{}")}) {
    ParallelSizes sizes = config.resolve(4);
    EXPECT_TRUE(sizes.enabled);
    EXPECT_EQ(sizes.data, 4);
    EXPECT_EQ(sizes.tensor, 1);
    EXPECT_EQ(sizes.pipeline, 1);
    EXPECT_EQ(sizes.tensor_mode, "1d");
    EXPECT_EQ(sizes.rank_order, RankOrder::pp_dp_tp);
    EXPECT_EQ(config.values().dialect, ConfigDialect::none);
  }
}

// One meaning in three dialects: the same sizes come out of each.
TEST(Config, DialectsAgree) {
  for (const char* text :
       {R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2}})",
        R"({"model_parallelism": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}})",
        R"({"train": {"dist": {"tensor_parallel_size": 2}}})",
        R"({"train": {"dist": {"data_parallel_size": 4, "tensor_parallel_size": 2}}})",
        R"({"train": {"dist": {"data_parallel_size": null, "tensor_parallel_size": 2,
            "pipeline_num_layers": null, "custom_pipeline_stage_id": null}}})",
        R"({"parallel": {"tensor": {"size": 2, "mode": "1d"}}})",
        R"({"parallel": {"data": 4, "pipeline": 1, "tensor": {"size": 2, "mode": "1d"}}})",
        R"({"parallel": {"data": {"size": 4}, "pipeline": {"size": 1},
            "tensor": {"size": 2, "mode": "1d"}}})",
        R"({"parallel": {"data": null, "pipeline": null, "tensor": {"size": 2, "mode": "1d"}}})"}) {
    ParallelSizes sizes = Config::parse(text).resolve(8);
    EXPECT_EQ(sizes.data, 4) << text;
    EXPECT_EQ(sizes.tensor, 2) << text;
    EXPECT_EQ(sizes.pipeline, 1) << text;
    EXPECT_TRUE(sizes.enabled) << text;
  }
}

TEST(Config, KnowsItsDialect) {
  EXPECT_EQ(Config::parse(R"({"model_parallelism": {}})").values().dialect, ConfigDialect::oslo);
  EXPECT_EQ(Config::parse(R"({"train": {}})").values().dialect, ConfigDialect::libai);
  EXPECT_EQ(Config::parse(R"({"parallel": {}})").values().dialect, ConfigDialect::colossal_ai);
}

TEST(Config, DisabledLeavesEverythingToData) {
  Config config = Config::parse(
      R"({"model_parallelism": {"enable": false, "tensor_parallel_size": 3,
          "pipeline_parallel_size": 2}})");
  ParallelSizes sizes = config.resolve(4);
  EXPECT_FALSE(sizes.enabled);
  EXPECT_EQ(sizes.data, 4);
  EXPECT_EQ(sizes.tensor, 1);
  EXPECT_EQ(sizes.pipeline, 1);
}

TEST(Config, HoldsWhatElseLiBaiSays) {
  ConfigValues values = Config::parse(R"({"train": {
      "dist": {"pipeline_parallel_size": 2, "pipeline_num_layers": 3,
               "custom_pipeline_stage_id": [0, 0, 1]},
      "num_accumulation_steps": 8, "activation_checkpoint": {"enabled": true},
      "zero_optimization": {"enabled": true, "stage": 2}, "amp": {"enabled": true}}})")
                            .values();
  EXPECT_EQ(values.pipeline_parallel_size, 2);
  EXPECT_EQ(values.pipeline_num_layers, 3);
  EXPECT_EQ(values.custom_pipeline_stage_id, (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(values.num_accumulation_steps, 8);
  EXPECT_TRUE(values.activation_checkpoint);
  EXPECT_TRUE(values.zero_optimization);
  EXPECT_EQ(values.zero_stage, 2);
  EXPECT_TRUE(values.amp);
}

TEST(Config, RankOrderBesideEveryDialect) {
  for (const char* text :
       {R"({"rank_order": "dp-pp-tp"})", R"({"rank_order": "dp-pp-tp", "model_parallelism": {}})",
        R"({"train": {}, "rank_order": "dp-pp-tp"})",
        R"({"parallel": {}, "rank_order": "dp-pp-tp"})"}) {
    EXPECT_EQ(Config::parse(text).resolve(2).rank_order, RankOrder::dp_pp_tp) << text;
  }
  expect_contains(parse_error(R"({"rank_order": "tp-dp-pp"})"),
                  {"'rank_order'", "pp-dp-tp, dp-pp-tp", "\"tp-dp-pp\""});
}

TEST(Config, RankOrderPrintsAndParses) {
  for (RankOrder order : {RankOrder::pp_dp_tp, RankOrder::dp_pp_tp}) {
    EXPECT_EQ(parse_rank_order(to_string(order)), order);
  }
  EXPECT_EQ(to_string(RankOrder::dp_pp_tp), "dp-pp-tp");
  EXPECT_THROW(parse_rank_order("dp"), Error);
}

TEST(Config, PlanKeepsItsOrder) {
  Config config = Config::parse(
      R"({"plan": {"wte": "vocab", "h.*.attn.c_attn": "column", "*": "replicate",
          "h.*.mlp.c_proj": "row"}})");
  std::vector<std::pair<std::string, std::string>> expected = {{"wte", "vocab"},
                                                               {"h.*.attn.c_attn", "column"},
                                                               {"*", "replicate"},
                                                               {"h.*.mlp.c_proj", "row"}};
  EXPECT_EQ(config.values().plan, expected);
  config.set("plan.*=column");
  config.set("plan.lm_head=\"replicate\"");
  expected[2].second = "column";
  expected.emplace_back("lm_head", "replicate");
  EXPECT_EQ(config.values().plan, expected);
  EXPECT_EQ(Config::parse(config.to_string()).values().plan, expected);
}

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
    Values(
        Refused{R"({"model_parallelism": {"pipeline_parallel_size": 2}})",
                4,
                {"'model_parallelism.pipeline_parallel_size' = 2", "to 1"}},
        Refused{R"({"train": {"dist": {"pipeline_parallel_size": 2}}})",
                2,
                {"'train.dist.pipeline_parallel_size' = 2"}},
        Refused{R"({"parallel": {"pipeline": {"size": 4}}})", 4, {"'parallel.pipeline' = 4"}},
        Refused{R"({"parallel": {"tensor": {"size": 4, "mode": "2d"}}})",
                4,
                {"'parallel.tensor.mode' = 2d", "1d"}},
        Refused{
            R"({"parallel": {"tensor": {"size": 8, "mode": "2.5d", "depth": 2}}})", 8, {"= 2.5d"}},
        Refused{R"({"parallel": {"tensor": {"size": 8, "mode": "3d"}}})", 8, {"= 3d"}},
        Refused{R"({"parallel": {"tensor": {"size": 2, "mode": "sequence"}}})", 4, {"= sequence"}},
        Refused{R"({"train": {"zero_optimization": {"enabled": true}}})",
                2,
                {"'train.zero_optimization.enabled' = true", "false"}},
        Refused{
            R"({"train": {"amp": {"enabled": true}}})", 2, {"'train.amp.enabled' = true", "false"}},
        Refused{R"({"train": {"activation_checkpoint": {"enabled": true}}})",
                2,
                {"'train.activation_checkpoint.enabled' = true", "false"}},
        Refused{R"({"train": {"num_accumulation_steps": 8}})",
                2,
                {"'train.num_accumulation_steps' = 8", "no_sync()"}}));

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
  expect_contains(error(two + "[0, 0, 1]"), {"not there yet"});
}

TEST(ConfigSet, OverridesInTheDialectsOwnPaths) {
  Config config = Config::parse(R"({"train": {"dist": {"tensor_parallel_size": 8}}})");
  config.set("train.dist.tensor_parallel_size=4");
  config.set("train.dist.tensor_parallel_size=2");  // the last one wins
  config.set("train.amp.enabled=false");
  config.set("rank_order=dp-pp-tp");  // no JSON: a string
  ParallelSizes sizes = config.resolve(8);
  EXPECT_EQ(sizes.tensor, 2);
  EXPECT_EQ(sizes.data, 4);
  EXPECT_EQ(sizes.rank_order, RankOrder::dp_pp_tp);
  config.set("train.dist.data_parallel_size=2");
  EXPECT_NE(error_of([&] { config.resolve(8); }), "");
  config.set("train.dist.data_parallel_size=null");
  EXPECT_EQ(config.resolve(8).data, 4);
}

TEST(ConfigSet, FirstOverrideOfAnEmptyConfigDecides) {
  Config config;
  config.set("rank_order=pp-dp-tp");
  EXPECT_EQ(config.values().dialect, ConfigDialect::none);
  config.set("model_parallelism.tensor_parallel_size=2");
  EXPECT_EQ(config.values().dialect, ConfigDialect::oslo);
  EXPECT_EQ(config.resolve(4).tensor, 2);
  EXPECT_NE(error_of([&] { config.set("train.dist.tensor_parallel_size=2"); }), "");
}

TEST(ConfigSet, OrderOfOverridesDoesNotMatter) {
  Config size_first;
  size_first.set("parallel.tensor.size=2");
  expect_contains(error_of([&] { size_first.resolve(2); }), {"no mode"});
  size_first.set("parallel.tensor.mode=1d");
  EXPECT_EQ(size_first.resolve(2).tensor, 2);
  Config mode_first;
  mode_first.set("parallel.tensor.mode=1d");
  expect_contains(error_of([&] { mode_first.resolve(2); }), {"no size"});
  mode_first.set("parallel.tensor.size=2");
  EXPECT_EQ(mode_first.resolve(2).tensor, 2);
  Config bare;  // a bare size is short for {"size": n}
  bare.set("parallel.tensor=2");
  bare.set("parallel.tensor.mode=1d");
  EXPECT_EQ(bare.resolve(2).tensor, 2);
}

TEST(ConfigSet, IsStrictAndChangesNothingOnError) {
  Config config = Config::parse(R"({"train": {"dist": {"tensor_parallel_size": 2}}})");
  const std::string before = config.to_string();
  auto set_error = [&](const std::string& assignment) {
    std::string message = error_of([&] { config.set(assignment); });
    expect_contains(message, {"override '" + assignment + "'"});
    EXPECT_EQ(config.to_string(), before);
    EXPECT_EQ(config.values().tensor_parallel_size, 2);
    return message;
  };
  expect_contains(set_error("train.dist.tensor_size=2"),
                  {"'train.dist.tensor_size'", "'tensor_parallel_size'"});
  expect_contains(set_error("train.dist.tensor_parallel_size=two"),
                  {"'train.dist.tensor_parallel_size'", "an integer", "the string \"two\""});
  expect_contains(set_error("train.dist.tensor_parallel_size.x=2"), {"no keys below it"});
  expect_contains(set_error("train.dist.tensor_parallel_size="), {"no value"});
  expect_contains(set_error("train.dist.tensor_parallel_size"), {"path=value"});
  expect_contains(set_error("=2"), {"path=value"});
  expect_contains(set_error("train..dist=2"), {"'train.'"});
  expect_contains(set_error(R"(train.dist={"tensor_parallel_size": 2, "tensor_parallel_size": 4})"),
                  {"duplicate"});
}

TEST(ConfigSet, CopiesAreIndependent) {
  Config first = Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 2}})");
  Config second = first;
  second.set("model_parallelism.tensor_parallel_size=4");
  EXPECT_EQ(first.resolve(4).tensor, 2);
  EXPECT_EQ(second.resolve(4).tensor, 4);
}

TEST(ConfigText, CommentsAreAllowed) {
  Config config = Config::parse("{ // OSLO\n\"model_parallelism\": {/* all */ \"enable\": true}}");
  EXPECT_TRUE(config.values().enabled);
}

TEST(ConfigText, BadJsonNamesLineAndColumn) {
  expect_contains(parse_error("{\n  \"train\": {,}\n}"), {"not valid JSON", "line 2, column 13"});
  expect_contains(parse_error(""), {"not valid JSON", "line 1, column 1"});
  expect_contains(parse_error("{} {}"), {"not valid JSON", "line 1, column 4"});
}

TEST(ConfigText, DuplicateKeysNameTheirPath) {
  expect_contains(
      parse_error(R"({"train": {"dist": {"tensor_parallel_size": 2, "tensor_parallel_size": 4}}})"),
      {"duplicate key 'train.dist.tensor_parallel_size'"});
  expect_contains(parse_error(R"({"train": {}, "train": {}})"), {"duplicate key 'train'"});
  // The same name in two objects is no duplicate.
  EXPECT_EQ(parse_error(R"({"train": {"amp": {"enabled": false},
                                      "activation_checkpoint": {"enabled": false}}})"),
            "");
}

// Nothing that a user can write may crash: deep nesting, long names, broken UTF-8.
TEST(ConfigText, HostileTextIsAnError) {
  std::string deep(100000, '[');
  expect_contains(parse_error(deep), {"not valid JSON"});
  expect_contains(parse_error("{\"train\": " + deep + std::string(deep.size(), ']') + "}"),
                  {"'train'", "an array of 1 element"});
  std::string message = parse_error("{\"" + std::string(10000, 'x') + "\": 1}");
  expect_contains(message, {"unknown key", "..."});
  EXPECT_LT(message.size(), 1000u);
  expect_contains(parse_error("{\"\xff\": 1}"), {"not valid JSON", "line 1, column 3"});
  expect_contains(error_of([] { Config::from_json({{"\xff", 1}}); }), {"unknown key"});
}

TEST(ConfigFile, NamesTheFile) {
  std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                 ("oslo_config_test_" + std::to_string(std::random_device()()));
  std::filesystem::create_directory(folder);
  auto write = [&](const std::string& text) {
    std::string path = (folder / "config.json").string();
    std::ofstream(path) << text;
    return path;
  };
  std::string path = write(R"({"parallel": {"tensor": {"size": 2, "mode": "1d"}}})");
  EXPECT_EQ(Config::from_file(path).resolve(4).tensor, 2);
  write("{\"parallel\": {\"tensors\": 2}}");
  expect_contains(error_of([&] { Config::from_file(path); }), {path, "'parallel.tensors'"});
  write("{\n!");
  expect_contains(error_of([&] { Config::from_file(path); }), {path, "line 2"});
  expect_contains(error_of([&] { Config::from_file(folder.string()); }), {"is a folder"});
  std::filesystem::remove_all(folder);
  expect_contains(error_of([&] { Config::from_file(path); }), {path, "cannot be opened"});
}

TEST(ConfigJson, GoesInAndOut) {
  nlohmann::json document = {{"model_parallelism", {{"enable", true}, {"tensor_parallel_size", 2}}},
                             {"plan", {{"wte", "vocab"}}}};
  Config config = Config::from_json(document);
  EXPECT_EQ(config.resolve(4).data, 2);
  EXPECT_EQ(config.to_json(), document);
  EXPECT_EQ(Config::from_json(config.to_json()).to_string(), config.to_string());
  EXPECT_EQ(Config().to_json(), nlohmann::json::object());
}

}  // namespace
}  // namespace oslo
