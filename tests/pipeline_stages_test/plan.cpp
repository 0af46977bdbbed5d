// The stage of every parameter and buffer: LiBai's rule, ids and patterns of the user's own, and
// what goes with which layer.
#include "parallelizers/stages/stage_plan.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "parallelizers/stages/stage_rule.h"
#include "tests/models/bert.h"
#include "tests/models/gpt2.h"
#include "tests/models/t5.h"
#include "tests/models/unet.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<int>;

/// How many layers each stage has.
Ids counts(int layers, int stages) {
  Ids found(stages);
  for (const int stage : automatic_stages(layers, stages)) ++found[stage];
  return found;
}

TEST(StageRule, IsLiBais) {
  EXPECT_THAT(counts(24, 4), ElementsAre(6, 7, 7, 4));
  EXPECT_THAT(counts(12, 5), ElementsAre(2, 2, 2, 3, 3));
  EXPECT_THAT(counts(8, 4), ElementsAre(2, 2, 3, 1));
  EXPECT_THAT(counts(7, 3), ElementsAre(2, 2, 3));
  EXPECT_THAT(counts(4, 4), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(counts(9, 1), ElementsAre(9));
  for (int stages = 1; stages <= 12; ++stages) {
    for (int layers = stages; layers <= 60; ++layers) {
      const Ids ids = automatic_stages(layers, stages);
      ASSERT_EQ(std::ssize(ids), layers);
      EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
      for (const int count : counts(layers, stages)) EXPECT_GT(count, 0) << layers << stages;
    }
  }
}

/// "wte.weight" and the like to its stages.
std::string stages_of(const ModelView& model, const StagePlan& plan, const std::string& path) {
  for (const ParameterView& parameter : model.parameters()) {
    if (parameter.path == path) return plan.tensors.of(parameter.in_use()).to_string();
  }
  for (const BufferView& buffer : model.buffers()) {
    if (buffer.path == path) return plan.tensors.of(buffer.tensor).to_string();
  }
  ADD_FAILURE() << "no " << path;
  return "";
}

models::GPT2 gpt2(int layers) {
  models::GPT2Options options;
  options.layers = layers;
  options.hidden = 8;
  return models::GPT2(options);
}

Ids actual(const StagePlan& plan) {
  Ids ids;
  for (const auto& layer : plan.layers) ids.push_back(layer.actual);
  return ids;
}

TEST(StagePlan, EmbeddingsComeFirstAndFinalNormsLast) {
  const auto model = gpt2(7);
  const ModelView view(model.ptr());
  const StagePlan plan = plan_stages(view, {3, 7, {}, {}});
  EXPECT_THAT(actual(plan), ElementsAre(0, 0, 1, 1, 2, 2, 2));
  EXPECT_EQ(plan.layers.front().path, "h.0");
  EXPECT_EQ(stages_of(view, plan, "wte.weight"), "stage 0");
  EXPECT_EQ(stages_of(view, plan, "wpe.weight"), "stage 0");
  EXPECT_EQ(stages_of(view, plan, "h.1.attn.c_attn.bias"), "stage 0");
  EXPECT_EQ(stages_of(view, plan, "h.3.ln_2.weight"), "stage 1");
  EXPECT_EQ(stages_of(view, plan, "ln_f.bias"), "stage 2");
}

TEST(StagePlan, IdsOfTheUsersOwnStandBesideTheAutomaticOnes) {
  const auto model = gpt2(4);
  const ModelView view(model.ptr());
  const StagePlan plan = plan_stages(view, {2, {}, Ids{0, 0, 0, 1}, {}});
  EXPECT_THAT(actual(plan), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(plan.layers[2].automatic, 1);
  EXPECT_EQ(stages_of(view, plan, "h.2.c_fc.weight"), "stage 0");
}

/// Megatron-LM's BERT as LiBai divides it by hand: fewer layers on the stage with the head.
TEST(StagePlan, TwentyFourLayersByIds) {
  Ids ids;
  for (const auto& [stage, layers] : std::map<int, int>{{0, 6}, {1, 7}, {2, 7}, {3, 4}}) {
    ids.insert(ids.end(), layers, stage);
  }
  const auto model = gpt2(24);
  const ModelView view(model.ptr());
  const StagePlan plan = plan_stages(view, {4, 24, ids, {}});
  EXPECT_EQ(actual(plan), ids);
  EXPECT_EQ(stages_of(view, plan, "h.19.c_fc.weight"), "stage 2");
  EXPECT_EQ(stages_of(view, plan, "ln_f.weight"), "stage 3");
}

TEST(StagePlan, PatternsPlaceWhatLiesBeneathThem) {
  const auto model = gpt2(4);
  const ModelView view(model.ptr());
  const StagePlan plan = plan_stages(view, {3,
                                            {},
                                            {},
                                            {{"h.1.c_fc.weight", {1}},  // the most components
                                             {"h.0-2.*", {2}},
                                             {"h.*", {0}},
                                             {"wte", {0, 2}}}});
  EXPECT_EQ(stages_of(view, plan, "h.0.ln_1.weight"), "stage 2");
  EXPECT_EQ(stages_of(view, plan, "h.2.attn.c_proj.weight"), "stage 2");
  EXPECT_EQ(stages_of(view, plan, "h.3.ln_1.weight"), "stage 0");
  EXPECT_EQ(stages_of(view, plan, "h.1.c_fc.weight"), "stage 1");
  EXPECT_EQ(stages_of(view, plan, "wte.weight"), "stages 0, 2");
  EXPECT_THAT(actual(plan), ElementsAre(2, 2, 2, 0));
}

TEST(StagePlan, AnEncoderAndADecoderAreOnePipeline) {
  const models::T5 model{models::T5Config()};
  const ModelView view(model.ptr());
  const auto layers = plan_stages(view, {2, {}, {}, {}}).layers;
  ASSERT_GE(layers.size(), 4u);
  EXPECT_TRUE(layers.front().path.starts_with("encoder"));
  EXPECT_TRUE(layers.back().path.starts_with("decoder"));
  EXPECT_EQ(layers.front().actual, 0);
  EXPECT_EQ(layers.back().actual, 1);
}

TEST(StagePlan, AModelWithoutListsIsDividedIntoItsModules) {
  const models::unet::UNet model;
  const ModelView view(model.ptr());
  const StagePlan plan = plan_stages(view, {4, {}, {}, {}});
  EXPECT_EQ(plan.layers.size(), 8u);
  EXPECT_THAT(actual(plan), ElementsAre(0, 0, 1, 1, 2, 2, 2, 3));
  EXPECT_EQ(stages_of(view, plan, "inc.conv1.weight"), "stage 0");
  EXPECT_EQ(stages_of(view, plan, "outc.bias"), "stage 3");
  torch::nn::Sequential eight;
  for (int i = 0; i < 8; ++i) {
    eight->push_back(torch::nn::Linear(3, 3));
    eight->push_back(torch::nn::ReLU());
  }
  EXPECT_EQ(plan_stages(ModelView(eight.ptr()), {4, {}, {}, {}}).layers.size(), 8u);
}

/// A head and a table that are one tensor, statistics, and a layer that is there twice.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 9).bias(false)));
    wte = register_module("wte", torch::nn::Embedding(9, 4));
    h = register_module("h", torch::nn::ModuleList());
    const torch::nn::Sequential twice(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4));
    for (int i = 0; i < 3; ++i) {
      h->push_back(torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4)));
    }
    h->push_back(twice);
    again = register_module("again", twice);
    head->weight = wte->weight;
  }
  torch::nn::Linear head{nullptr};
  torch::nn::Embedding wte{nullptr};
  torch::nn::ModuleList h;
  torch::nn::Sequential again{nullptr};
};
TORCH_MODULE(Tied);

TEST(StagePlan, ATensorOfSeveralNamesHasTheStagesOfAll) {
  const Tied model;
  const ModelView view(model.ptr());
  const StagePlan plan = plan_stages(view, {2, 4, {}, {}});
  EXPECT_EQ(stages_of(view, plan, "wte.weight"), "stages 0, 1");
  EXPECT_EQ(plan.tensors.of(model->head->weight).to_string(), "stages 0, 1");
  EXPECT_EQ(stages_of(view, plan, "h.1.1.running_mean"), "stage 0");
  EXPECT_EQ(stages_of(view, plan, "h.2.1.running_mean"), "stage 1");
  EXPECT_EQ(stages_of(view, plan, "h.2.1.num_batches_tracked"), "stage 1");
}

TEST(StagePlan, WhatDoesNotFitIsRefusedWithBothNumbers) {
  const auto model = gpt2(4);
  const ModelView view(model.ptr());
  const auto error = [&](const StageWishes& wishes) {
    return error_of([&] { plan_stages(view, wishes); });
  };
  expect_contains(error({2, 24, {}, {}}), {"'pipeline_num_layers' is 24", "4 layers (h.0 to h.3)"});
  expect_contains(error({2, {}, Ids{0, 0, 1}, {}}), {"3 entries", "4 layers"});
  expect_contains(error({5, {}, {}, {}}), {"5 stages", "4 layers (h.0 to h.3)", "fewer stages"});
  expect_contains(error({2, {}, {}, {{"h.7", {1}}}}), {"\"h.7\"", "matches no parameter"});
  expect_contains(error({2, {}, {}, {{"h.*", {2}}}}), {"\"h.*\" names stage 2", "2 stages"});
}

}  // namespace
}  // namespace oslo::test
