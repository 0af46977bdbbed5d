// What `oslo train` reads: keys, references, LiBai's arithmetic of batches.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "oslo_cpp/train_net/batch_sizes.h"
#include "oslo_cpp/train_net/sample_order.h"
#include "oslo_cpp/train_net/train_config.h"
#include "oslo_cpp/train_net/train_schema.h"
#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

constexpr const char* kSmallest = R"({"model": {"name": "bert", "cfg": {"hidden_layers": 6}},
    "dataloader": {"train": {"samples": 10}}})";

std::string error_with(const std::vector<std::string>& overrides) {
  return error_of([&] {
    TrainConfig config = TrainConfig::parse(kSmallest);
    for (const std::string& each : overrides) config.set(each);
    config.values();
    config.parallel();
  });
}

TEST(TrainConfig, HasLiBaisNamesAndDefaults) {
  const TrainValues values = TrainConfig::parse(kSmallest).values();
  EXPECT_EQ(values.model, "bert");
  EXPECT_EQ(values.train_iter, 10000);
  EXPECT_EQ(values.seed, 1234);
  EXPECT_EQ(values.optim.name, "AdamW");
  EXPECT_EQ(values.optim.lr, 1e-4);
  EXPECT_EQ(values.optim.clip_grad_max_norm, std::nullopt);
  EXPECT_TRUE(values.test_data.is_null());
  const TrainConfig given = TrainConfig::parse(R"({
      "model": {"name": "net", "library": "libnet.so", "cfg": {"a": {"b": [1, "two"]}}},
      "dataloader": {"train": {"samples": 10}, "test": {"samples": 5}},
      "optim": {"name": "SGD", "lr": 0.5, "momentum": 0.9,
                "params": {"clip_grad_max_norm": 2, "clip_grad_norm_type": 1}},
      "train": {"output_dir": "out", "train_iter": 7, "seed": 0, "log_period": 3,
                "scheduler": {"name": "WarmupMultiStepLR", "milestones": [3, 5], "gamma": 0.5,
                              "warmup_iter": 2},
                "checkpointer": {"period": 4, "max_to_keep": 0},
                "evaluation": {"enabled": true, "eval_period": 2, "eval_iter": 3},
                "load_weight": "w", "train_epoch": 2}})");
  const TrainValues all = given.values();
  EXPECT_EQ(all.library, "libnet.so");
  EXPECT_EQ(all.cfg, nlohmann::json::parse(R"({"a": {"b": [1, "two"]}})"));
  EXPECT_EQ(all.optim.momentum, 0.9);
  EXPECT_EQ(all.optim.weight_decay, 0);
  EXPECT_EQ(all.optim.clip_grad_max_norm, 2.0);
  EXPECT_EQ(all.scheduler->milestones, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(all.scheduler->warmup_iter, 2);
  EXPECT_EQ(all.eval_iter, 3);
  EXPECT_EQ(all.max_to_keep, 0);
  EXPECT_EQ(TrainConfig::parse(given.to_string()).to_string(), given.to_string());
}

TEST(TrainConfig, WhatIsNotUnderstoodNamesTheNearest) {
  expect_contains(
      error_with({"train.train_itr=5"}),
      {"override 'train.train_itr=5'", "unknown key 'train.train_itr'", "'train_iter'"});
  expect_contains(error_with({"optm.lr=5"}), {"'optim'"});
  expect_contains(error_with({"lr=5"}), {"'lr' belongs in 'optim.lr'"});
  expect_contains(error_with({"tensor_parallel_size=5"}),
                  {"belongs in 'train.dist.tensor_parallel_size'"});
  expect_contains(error_with({"train.train_iter=0"}), {"expected an integer from 1"});
  expect_contains(error_with({"train.seed=-1"}), {"expected an integer from 0"});
  expect_contains(error_with({"optim.lr=fast"}), {"expected a number from 0"});
  expect_contains(error_with({"optim.name=Lion"}), {"one of AdamW, Adam, SGD"});
  expect_contains(error_with({"model=bert"}), {"'model': expected an object"});
  expect_contains(error_with({"model.name.x=1"}), {"'model.name' is a value"});
  expect_contains(error_with({"dataloader.train.samples.x=1"}), {"stands the integer 10"});
  expect_contains(error_with({"model_parallelism.enable=true"}),
                  {"unknown key 'model_parallelism'"});
  expect_contains(error_with({"optim.betas=[0.9]"}), {"'optim.betas' has 1 numbers"});
  expect_contains(error_with({"optim.momentum=0.9"}), {"SGD's", "AdamW"});
  expect_contains(error_with({"train.warmup_ratio=0.1"}), {"without a 'train.scheduler'"});
  expect_contains(error_with({"train.evaluation.enabled=true"}), {"no 'dataloader.test'"});
  expect_contains(error_of([] { TrainConfig::parse("{}").values(); }), {"no 'model.name'"});
  expect_contains(error_of([] { TrainConfig::parse(R"({"model": {"name": "x"}})").values(); }),
                  {"no 'dataloader.train'"});
}

TEST(TrainConfig, KeysReferToOthers) {
  TrainConfig config = TrainConfig::parse(kSmallest);
  config.set("train.dist.pipeline_num_layers=model.cfg.hidden_layers");
  EXPECT_EQ(config.parallel().values().pipeline_num_layers, 6);
  config.set("model.cfg.hidden_layers=4");
  EXPECT_EQ(config.parallel().values().pipeline_num_layers, 4);
  config.set("train.dist.pipeline_num_layers=2 * model.cfg.hidden_layers");
  EXPECT_EQ(config.parallel().values().pipeline_num_layers, 8);
  config.set("dataloader.train.seq_length=model.cfg.width");
  EXPECT_EQ(config.values().train_data["seq_length"], "model.cfg.width");  // a text like any other
  config.set("model.cfg.width=model.cfg.hidden_layers");
  EXPECT_EQ(config.values().train_data["seq_length"], 4);
  EXPECT_EQ(nlohmann::json::parse(config.to_string())["train"]["dist"]["pipeline_num_layers"], 8);

  expect_contains(error_with({"train.dist.pipeline_num_layers=model.cfg.hidden_layer"}),
                  {"'train.dist.pipeline_num_layers' = 'model.cfg.hidden_layer'", "no such key",
                   "'hidden_layers'"});
  expect_contains(
      error_with({"train.train_iter=train.log_period", "train.log_period=train.train_iter"}),
      {"go in a circle"});
  expect_contains(error_with({"train.train_iter=model.name"}), {"expected an integer"});
  expect_contains(error_with({"train.train_iter=3 * model.name"}), {"a whole number is meant"});
}

TEST(TrainConfig, InheritsAndKeepsWhatOnlyAChildCompletes) {
  const TemporaryDirectory folder;
  write_contents(folder / "base.json",
                 R"({"train": {"dist": {"data_parallel_size": 1, "tensor_parallel_size": 1,
                     "pipeline_parallel_size": 1, "pipeline_num_layers": "model.cfg.depth"}},
                     "optim": {"lr": 1}})");
  write_contents(folder / "net.json", R"({"base": "base.json", "optim": {"weight_decay": 0.5},
      "model": {"name": "vit", "cfg": {"depth": 3}}, "dataloader": {"train": {}}})");
  TrainConfig config = TrainConfig::from_file((folder / "net.json").string());
  EXPECT_EQ(config.values().optim.lr, 1);
  EXPECT_EQ(config.values().optim.weight_decay, 0.5);
  EXPECT_EQ(config.parallel().values().pipeline_num_layers, 3);
  EXPECT_EQ(config.parallel().resolve(8).data, 8);
  config.set("train.dist.data_parallel_size=1");
  expect_contains(error_of([&] { config.parallel().resolve(8); }), {"the world size is 8"});
  write_contents(folder / "bad.json", R"({"base": "base.json", "optim": {"lrr": 1}})");
  expect_contains(error_of([&] { TrainConfig::from_file((folder / "bad.json").string()); }),
                  {"bad.json'", "'optim.lrr'", "'lr'"});
}

TEST(BatchSizes, AreLiBais) {
  const auto sizes = [](std::optional<int64_t> micro, std::optional<int64_t> global,
                        std::optional<int64_t> steps, int ranks) {
    TrainValues values;
    values.train_micro_batch_size = micro;
    values.global_batch_size = global;
    values.num_accumulation_steps = steps;
    const BatchSizes found = batch_sizes(values, ranks);
    return std::vector<int64_t>{found.micro, found.global, found.accumulation};
  };
  using Sizes = std::vector<int64_t>;
  EXPECT_EQ(sizes(4, {}, {}, 3), (Sizes{4, 12, 1}));
  EXPECT_EQ(sizes(4, {}, 5, 3), (Sizes{4, 60, 5}));
  EXPECT_EQ(sizes({}, 60, 5, 3), (Sizes{4, 60, 5}));
  EXPECT_EQ(sizes({}, 60, {}, 3), (Sizes{20, 60, 1}));
  EXPECT_EQ(sizes(4, 60, {}, 3), (Sizes{4, 60, 5}));
  EXPECT_EQ(sizes(4, 60, 5, 3), (Sizes{4, 60, 5}));
  expect_contains(error_of([&] { sizes({}, {}, 2, 2); }), {"neither"});
  expect_contains(error_of([&] { sizes({}, 61, 5, 3); }), {"61 is no multiple", "set it to 60"});
  expect_contains(error_of([&] { sizes(4, 30, {}, 3); }), {"'train.train_micro_batch_size' 4"});
  expect_contains(error_of([&] { sizes(4, 60, 4, 3); }), {"= 48", "leave one of the three out"});

  TrainValues values;
  values.train_iter = 5;
  values.train_epoch = 2;
  EXPECT_EQ(iterations_of(values, 100, {4, 12, 1}), 16);
  EXPECT_EQ(iterations_of(values, 13, {4, 12, 1}), 5);
  expect_contains(error_of([&] { iterations_of(values, 11, {4, 12, 1}); }), {"has 11 samples"});
  values.warmup_ratio = 0.3;
  EXPECT_EQ(warmup_iterations(values, 5), 2);
}

TEST(SampleOrder, IsOfTheSeedAndTheIterationAlone) {
  SampleOrder order(11, 3, 7), later(11, 3, 7), other(11, 3, 8);
  EXPECT_EQ(order.batches_an_epoch(), 3);
  std::vector<std::vector<int64_t>> seen;
  for (int64_t i = 0; i < 9; ++i) seen.push_back(order.of(i));
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> samples;
    for (int i = 0; i < 3; ++i)
      samples.insert(seen[3 * epoch + i].begin(), seen[3 * epoch + i].end());
    EXPECT_EQ(samples.size(), 9u);  // each once
    EXPECT_LE(*samples.rbegin(), 10);
  }
  EXPECT_EQ(later.of(7), seen[7]);  // as a resumed run
  EXPECT_NE(seen[0], seen[3]);
  EXPECT_NE(other.of(0), seen[0]);
  EXPECT_THROW(SampleOrder(2, 3, 0), Error);
}

/// A key without a word in the page is one that nobody finds.
TEST(TrainPage, NamesEveryKey) {
  const std::string page = contents(OSLO_SOURCE_DIR "/docs/train.md");
  const std::function<void(const ConfigKey&)> look = [&](const ConfigKey& key) {
    for (const ConfigKey& child : key.keys) {
      EXPECT_NE(page.find(child.name), std::string::npos) << child.name;
      look(child);
    }
  };
  const ConfigKey root = train_schema();
  for (const char* section : {"model", "optim", "dataloader"}) look(*root.find(section));
  for (const ConfigKey& child : root.find("train")->keys) {
    if (config_schema(ConfigDialect::libai).find("train")->find(child.name) != nullptr) continue;
    EXPECT_NE(page.find(child.name), std::string::npos) << child.name;
    look(child);
  }
}

}  // namespace
}  // namespace oslo::test
