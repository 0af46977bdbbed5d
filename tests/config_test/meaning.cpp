// What a config says, in each of the three dialects.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/config/grid_options.h"
#include "tests/config_test/config_errors.h"

namespace oslo::config_test {
namespace {

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

TEST(Config, HowAPipelineIsDivided) {
  const auto shape = [](const std::string& text) {
    const PipelineShape found = pipeline_shape(Config::parse(text).values());
    return std::pair(found.kind, found.chunks);
  };
  using Shape = std::pair<std::string, int>;
  EXPECT_EQ(shape(R"({"model_parallelism": {"pipeline_parallel_size": 2}})"), Shape("1f1b", 1));
  EXPECT_EQ(shape(R"({"model_parallelism": {"num_model_chunks": 3}})"), Shape("interleaved", 3));
  EXPECT_EQ(shape(R"({"model_parallelism": {"pipeline_schedule": "zbv"}})"), Shape("zbv", 2));
  EXPECT_EQ(shape(R"({"train": {"dist": {"pipeline_schedule": "zero_bubble"}}})"),
            Shape("zero_bubble", 1));
  EXPECT_EQ(shape(R"({"train": {"dist": {"pipeline_schedule": "zero_bubble",
                                         "num_model_chunks": 2}}})"),
            Shape("zero_bubble", 2));
  EXPECT_EQ(shape(R"({"parallel": {"pipeline": {"size": 2, "schedule": "dualpipev"}}})"),
            Shape("dualpipev", 2));
  EXPECT_EQ(shape(R"({"parallel": {"pipeline": {"size": 2, "num_model_chunks": 4}}})"),
            Shape("interleaved", 4));
  expect_contains(parse_error(R"({"model_parallelism": {"pipeline_schedule": "1F1B"}})"),
                  {"'model_parallelism.pipeline_schedule'", "dualpipev", "\"1F1B\""});
  expect_contains(
      resolve_error(R"({"model_parallelism": {"pipeline_schedule": "zbv", "num_model_chunks": 3}})",
                    2),
      {"'num_model_chunks' = 3", "zbv has 2 stages a rank"});
  expect_contains(resolve_error(R"({"model_parallelism": {"pipeline_parallel_size": 2,
                                    "num_model_chunks": 33}})",
                                2),
                  {"'model_parallelism.pipeline_parallel_size' = 2", "33 stages a rank", "64"});
  // Ids count all stages.
  EXPECT_EQ(Config::parse(R"({"train": {"dist": {"pipeline_parallel_size": 2, "num_model_chunks": 2,
                              "custom_pipeline_stage_id": [0, 1, 2, 3]}}})")
                .resolve(2)
                .pipeline,
            2);
  expect_contains(resolve_error(R"({"train": {"dist": {"pipeline_parallel_size": 2,
                                    "num_model_chunks": 2,
                                    "custom_pipeline_stage_id": [0, 1, 2, 4]}}})",
                                2),
                  {"layer 3 on stage 4", "2 stages a rank", "the last stage is 3"});
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

TEST(Config, TimeoutIsInSeconds) {
  Config config = Config::parse(R"({"train": {"dist": {"tensor_parallel_size": 2}}})");
  EXPECT_EQ(config.resolve(2).timeout, std::nullopt);
  config.set("timeout=90");
  EXPECT_EQ(config.resolve(2).timeout, std::chrono::seconds(90));
  for (const char* wrong : {"0", "-3", "604801", "1.5", "10m", "true"}) {
    expect_contains(error_of([&] { config.set(std::string("timeout=") + wrong); }),
                    {"'timeout'", "an integer from 1 to 604800", wrong});
  }
}

TEST(Config, KernelFusionBesideEveryDialect) {
  EXPECT_FALSE(Config().values().kernel_fusion);
  EXPECT_FALSE(Config().values().sequence_parallel);
  for (const std::string dialect : {"model_parallelism", "train", "parallel"}) {
    Config config = Config::parse("{\"kernel_fusion\": true, \"" + dialect + "\": {}}");
    EXPECT_TRUE(config.values().kernel_fusion) << dialect;
    config.set("sequence_parallel=true");
    EXPECT_TRUE(config.values().sequence_parallel) << dialect;
    config.set("kernel_fusion=false");
    EXPECT_FALSE(config.values().kernel_fusion) << dialect;
    expect_contains(error_of([&] { config.set("kernel_fusion=1"); }),
                    {"'kernel_fusion'", "expected true or false", "1"});
  }
}

TEST(Config, StrictBesideEveryDialect) {
  EXPECT_FALSE(Config().values().strict);
  for (const std::string dialect : {"model_parallelism", "train", "parallel"}) {
    Config config = Config::parse("{\"strict\": true, \"" + dialect + "\": {}}");
    EXPECT_TRUE(config.values().strict) << dialect;
    config.set("strict=false");
    EXPECT_FALSE(config.values().strict) << dialect;
    expect_contains(error_of([&] { config.set("strict=yes"); }),
                    {"'strict'", "expected true or false", "yes"});
  }
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

TEST(Config, RecomputationInEveryDialect) {
  const std::string asked = R"("activation_checkpoint": {"enabled": true, "every": 3,
      "modules": ["h.*", "encoder.layer.*"], "keep": ["matmul"], "keep_at_most": 0.5})";
  for (const std::string& text :
       {"{" + asked + "}", R"({"train": {)" + asked + "}}", R"({"parallel": {}, )" + asked + "}"}) {
    const Config config = Config::parse(text);
    EXPECT_TRUE(config.values().activation_checkpoint) << text;
    EXPECT_EQ(config.values().activation_every, 3);
    EXPECT_EQ(config.values().activation_modules,
              (std::vector<std::string>{"h.*", "encoder.layer.*"}));
    EXPECT_EQ(config.values().activation_keep, std::vector<std::string>{"matmul"});
    EXPECT_EQ(config.values().activation_keep_at_most, 0.5);
    EXPECT_EQ(config.resolve(2).data, 2);
  }
  EXPECT_FALSE(Config().values().activation_checkpoint);
  const auto error = [](const std::string& key) {
    return error_of([&] { Config::parse(R"({"activation_checkpoint": {)" + key + "}}"); });
  };
  expect_contains(error(R"("keep": ["matmull"])"), {"'activation_checkpoint.keep[0]'", "matmul,"});
  expect_contains(error(R"("modules": ["h*"])"), {"modules pattern 'h*'"});
  expect_contains(error(R"("modules": [1])"), {"'activation_checkpoint.modules[0]'"});
  expect_contains(error(R"("every": 0)"), {"'activation_checkpoint.every'", "from 1"});
}

TEST(Config, OffloadInEveryDialect) {
  const std::string asked =
      R"("activation_checkpoint": {"offload": true, "offload_ahead": "64MB"})";
  for (const std::string& text :
       {"{" + asked + "}", R"({"train": {)" + asked + "}}", R"({"parallel": {}, )" + asked + "}"}) {
    const Config config = Config::parse(text);
    EXPECT_TRUE(config.values().activation_offload) << text;
    EXPECT_EQ(config.values().activation_ahead, 64000000) << text;
    EXPECT_FALSE(config.values().activation_checkpoint) << text;
    EXPECT_EQ(config.resolve(2).data, 2);
  }
  EXPECT_FALSE(Config().values().activation_offload);
  const auto refused = [](const std::string& keys) {
    return resolve_error(R"({"activation_checkpoint": {)" + keys + "}}", 2);
  };
  for (const char* again : {R"("enabled": true)", R"("memory": "2GB")"}) {
    expect_contains(refused(c10::str(again, R"(, "offload": true)")),
                    {"'activation_checkpoint.offload'", "'enabled'", "one of the two to false"});
  }
  expect_contains(refused(R"("offload_ahead": "64MB")"),
                  {"'activation_checkpoint.offload_ahead'", "'offload' is false", "leave"});
  expect_contains(parse_error(R"({"activation_checkpoint": {"offload_ahead": 0}})"),
                  {"'activation_checkpoint.offload_ahead'", "a number of bytes"});
}

TEST(Config, ABudgetOfMemory) {
  const auto bytes = [](const std::string& memory) {
    const Config config = Config::parse(R"({"activation_checkpoint": {"memory": )" + memory + "}}");
    EXPECT_TRUE(config.values().activation_checkpoint);  // it switches it on
    return config.values().activation_memory;
  };
  EXPECT_EQ(bytes(R"("2GB")"), 2000000000);
  EXPECT_EQ(bytes(R"("1.5 GiB")"), 1610612736);
  EXPECT_EQ(bytes("4096"), 4096);
  Config set;
  set.set("activation_checkpoint.memory=3MB");
  EXPECT_EQ(set.values().activation_memory, 3000000);
  for (const std::string wrong : {R"("2 XB")", R"("")", R"("0")", "0", "-1", "1.5", "true", "[]"}) {
    expect_contains(parse_error(R"({"activation_checkpoint": {"memory": )" + wrong + "}}"),
                    {"'activation_checkpoint.memory'", "a number of bytes", "\"2GB\""});
  }
  expect_contains(
      resolve_error(R"({"train": {"activation_checkpoint": {"enabled": false, "memory": "2GB"}}})",
                    2),
      {"'train.activation_checkpoint.memory'", "'train.activation_checkpoint.enabled' is false",
       "true"});
}

// Colossal-AI's modes are axes of the grid, alike in both orders of ranks.
TEST(Config, ModesAreAxes) {
  const auto grid = [](const std::string& tensor, int world, const std::string& more = "") {
    const Config config = Config::parse(R"({"parallel": {"tensor": )" + tensor + "}" + more + "}");
    return factors(grid_options(config.resolve(world), config, {}).grid(world).axes());
  };
  EXPECT_EQ(grid(R"({"size": 4, "mode": "2d"})", 8), "pipeline 1 x data 2 x row 2 x column 2");
  EXPECT_EQ(grid(R"({"size": 9, "mode": "2d"})", 9, R"(, "rank_order": "dp-pp-tp")"),
            "data 1 x pipeline 1 x row 3 x column 3");
  EXPECT_EQ(grid(R"({"size": 8, "mode": "2.5d", "depth": 2})", 8),
            "pipeline 1 x data 1 x depth 2 x row 2 x column 2");
  EXPECT_EQ(grid(R"({"size": 8, "mode": "3d"})", 16),
            "pipeline 1 x data 2 x output 2 x weight 2 x input 2");
  EXPECT_EQ(grid(R"({"size": 3, "mode": "sequence"})", 6), "pipeline 1 x data 2 x context 3");
  EXPECT_EQ(grid(R"({"size": 2, "mode": "1d"})", 8, R"(, "context_parallel_size": 2)"),
            "pipeline 1 x data 2 x context 2 x tensor 2");
}

}  // namespace
}  // namespace oslo::config_test
