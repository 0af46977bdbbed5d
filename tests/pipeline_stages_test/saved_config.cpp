// The stages of a model's layers in its saved config, and a model that is made from one again.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "tests/models/gpt2.h"
#include "tests/support/errors_of.h"
#include "tests/support/files.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

models::GPT2 five_layers() {
  return make_seeded(3, [] {
    models::GPT2Options options;
    options.layers = 5;
    options.hidden = 8;
    options.heads = 2;
    options.vocabulary = 13;
    return models::GPT2(options);
  });
}

/// The config of a model initialized with `config`, as rank 0 has it.
Config config_after(const Config& config, int ranks = 2) {
  Config after;
  run_as_threads(ranks, [&](World world) {
    auto model = five_layers();
    const ParallelModel parallel = initialize(model, config, in(world));
    if (world.rank() == 0) after = parallel.config();
  });
  return after;
}

TEST(SavedConfig, HasTheStagesOfEachLayerInTheDialectsOwnPlace) {
  const Config libai = config_after(Config::parse(R"({"train": {"dist": {
      "pipeline_parallel_size": 2, "custom_pipeline_stage_id": [0, 0, 0, 0, 1]}}})"));
  const auto dist = libai.to_json()["train"]["dist"];
  EXPECT_EQ(dist["auto_pipeline_stage_id"].dump(), "[0,0,1,1,1]");
  EXPECT_EQ(dist["actual_pipeline_stage_id"].dump(), "[0,0,0,0,1]");
  for (const char* text : {R"({"model_parallelism": {"pipeline_parallel_size": 2},
                               "balance_stages": "memory"})",
                           R"({"parallel": {"pipeline": 2}, "balance_stages": "memory"})"}) {
    const auto json = config_after(Config::parse(text)).to_json();
    EXPECT_EQ(json["auto_pipeline_stage_id"].dump(), "[0,0,1,1,1]");
    EXPECT_EQ(json["actual_pipeline_stage_id"].size(), 5u);
  }
  // Nothing to say without a pipeline.
  EXPECT_EQ(config_after(Config::parse(R"({"parallel": {"pipeline": 1}})"), 2).to_string(),
            R"({"parallel":{"pipeline":1}})");
}

TEST(SavedConfig, GivesAModelTheSameStagesAgain) {
  Config saved = config_after(Config::parse(R"({"model_parallelism": {"pipeline_parallel_size": 2},
                                                "balance_stages": "memory"})"));
  EXPECT_EQ(config_after(Config::from_json(saved.to_json())).to_string(),
            Config::from_json(saved.to_json()).to_string());
  saved.set("actual_pipeline_stage_id=[0, 0, 0, 0, 1]");
  const auto again = config_after(saved).to_json();
  EXPECT_EQ(again["actual_pipeline_stage_id"].dump(), "[0,0,0,0,1]");
}

TEST(SavedConfig, OfAnotherPipelineIsRefused) {
  const Config saved =
      config_after(Config::parse(R"({"model_parallelism": {"pipeline_parallel_size": 2}})"));
  const auto refused = [](Config config, const std::string& change, int ranks) {
    config.set(change);
    return errors_of(ranks, [&](World world) { initialize(five_layers(), config, in(world)); });
  };
  EXPECT_THAT(refused(saved, "model_parallelism.pipeline_parallel_size=3", 3),
              Each(AllOf(HasSubstr("'auto_pipeline_stage_id' is [0, 0, 1, 1, 1]"),
                         HasSubstr("it would be [0, 1, 1, 2, 2]"),
                         HasSubstr("remove it and 'actual_pipeline_stage_id'"))));
  EXPECT_THAT(refused(saved, "actual_pipeline_stage_id=[0, 0, 1, 1, 2]", 2),
              Each(AllOf(HasSubstr("'actual_pipeline_stage_id' puts layer 4 (h.4) on stage 2"),
                         HasSubstr("of 2 stages the last is 1"))));
  const Config custom = Config::parse(R"({"train": {"dist": {"pipeline_parallel_size": 2,
      "custom_pipeline_stage_id": [0, 0, 0, 0, 1]}}})");
  EXPECT_THAT(refused(custom, "train.dist.actual_pipeline_stage_id=[0, 1, 1, 1, 1]", 2),
              Each(HasSubstr("differs from 'train.dist.actual_pipeline_stage_id'")));
  EXPECT_THAT(refused(custom, "balance_stages=memory", 2),
              Each(HasSubstr("both divide the layers: keep one of them")));
}

TEST(SavedConfig, LiesInAParallelCheckpoint) {
  const TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    auto model = five_layers();
    const ParallelModel parallel =
        initialize(model, Config::parse(R"({"parallel": {"pipeline": 2}})"), in(world));
    parallel.save_parallelized(folder / "parts");
    parallel.save_parallelized(folder / "merged", SaveOptions().merge_checkpoints(true));
    const auto written = Config::from_file(folder / "parts/parallel_config.json");
    EXPECT_EQ(written.to_json(), parallel.config().to_json());
    EXPECT_FALSE(std::filesystem::exists(folder / "merged/parallel_config.json"));
    parallel.from_parallelized(folder / "parts");
  });
}

}  // namespace
}  // namespace oslo::test
