// Stages that a program gives to modules and tensors, as LiBai's set_pipeline_stage_id does.
#include "parallelizers/stages/stage_assignment.h"

#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include "tests/models/gpt2.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

models::GPT2 four_blocks() {
  return make_seeded(3, [] {
    models::GPT2Options options;
    options.layers = 4;
    options.hidden = 8;
    options.heads = 2;
    options.vocabulary = 13;
    return models::GPT2(options);
  });
}

using Assign = std::function<void(models::GPT2&, StageAssignment&)>;

/// "wte.weight" and the like to its stage, after initialize.
std::map<std::string, int> assigned(const std::string& config, int ranks, const Assign& assign,
                                    std::string* why = nullptr) {
  std::map<std::string, int> stages;
  run_as_threads(ranks, [&](World world) {
    auto model = four_blocks();
    auto how = in(world);
    assign(model, how.stages);
    const ParallelModel parallel = initialize(model, Config::parse(config), how);
    if (world.rank() != 0) return;
    for (const PlanEntry& entry : parallel.plan().entries) stages[entry.parameter] = entry.stage;
    if (why != nullptr) *why = parallel.plan().pipeline.why;
  });
  return stages;
}

constexpr const char* kTwo = R"({"parallel": {"pipeline": 2}})";

/// As LiBai's model of BERT does: by the index of each layer, and -1 for what comes last.
TEST(StageAssignment, ByLayerIndexIsLiBais) {
  std::string why;
  const auto by_index = [](models::GPT2& model, StageAssignment& stages) {
    for (int i = 0; i < 4; ++i) stages.set_layer_idx(model->h->ptr(i), i);
    stages.set_pipeline_stage_id(model->wte, 0).set_layer_idx(model->ln_f, -1);
  };
  auto stages = assigned(R"({"train": {"dist": {"pipeline_parallel_size": 2,
      "custom_pipeline_stage_id": [0, 1, 1, 1]}}})",
                         2, by_index, &why);
  EXPECT_EQ(stages["wte.weight"], 0);
  EXPECT_EQ(stages["h.0.ln_1.weight"], 0);
  EXPECT_EQ(stages["h.1.ln_1.weight"], 1);
  EXPECT_EQ(stages["ln_f.bias"], 1);
  EXPECT_EQ(why, "by 'custom_pipeline_stage_id', then as modules were given stages");
}

TEST(StageAssignment, ModulesTakeWhatIsBesideAndBeneathThemAlong) {
  auto stages = assigned(R"({"parallel": {"pipeline": 3}})", 3,
                         [](models::GPT2& model, StageAssignment& stages) {
                           for (int i = 0; i < 4; ++i) {
                             stages.set_pipeline_stage_id(model->h->ptr(i), i == 0 ? 0 : 1);
                           }
                           stages.set_pipeline_stage_id(model->ln_f, -1);
                         });
  EXPECT_EQ(stages["wpe.weight"], 0);
  EXPECT_EQ(stages["h.0.attn.c_attn.weight"], 0);
  EXPECT_EQ(stages["h.3.attn.c_attn.weight"], 1);
  EXPECT_EQ(stages["ln_f.weight"], 2);
  // Without a word about the norm it goes with the last layer, wherever that is.
  stages = assigned(kTwo, 2, [](models::GPT2& model, StageAssignment& stages) {
    stages.set_pipeline_stage_id(model->h, 0);
  });
  EXPECT_EQ(stages["h.3.ln_2.bias"], 0);
  EXPECT_EQ(stages["ln_f.weight"], 0);
}

TEST(StageAssignment, TheInnermostTheLastAndPatternsWin) {
  const auto assign = [](models::GPT2& model, StageAssignment& stages) {
    auto block = model->h->ptr<torch::nn::Module>(0);
    stages.set_pipeline_stage_id(block->named_children()["ln_1"], 1);
    stages.set_pipeline_stage_id(block, 1).set_pipeline_stage_id(block, 0);
    stages.set_pipeline_stage_id(model->wpe->weight, -1);
    stages.set_pipeline_stage_id(model->ln_f, 1);
  };
  auto stages = assigned(R"({"parallel": {"pipeline": 2}, "stages": {"ln_f": 0}})", 2, assign);
  EXPECT_EQ(stages["h.0.ln_1.weight"], 1);
  EXPECT_EQ(stages["h.0.ln_2.weight"], 0);
  EXPECT_EQ(stages["wpe.weight"], 1);
  EXPECT_EQ(stages["ln_f.weight"], 0);
}

std::vector<std::string> refused_assignment(int ranks, const Assign& assign) {
  return errors_of(ranks, [&](World world) {
    auto model = four_blocks();
    auto how = in(world);
    assign(model, how.stages);
    initialize(model, Config::parse(c10::str(R"({"parallel": {"pipeline": )", ranks, "}}")), how);
  });
}

TEST(StageAssignment, WhatThereIsNotIsRefusedByNameOnEveryRank) {
  using Model = models::GPT2;
  EXPECT_THAT(refused_assignment(2,
                                 [](Model& model, StageAssignment& stages) {
                                   stages.set_pipeline_stage_id(model->ln_f, 2);
                                 }),
              Each(AllOf(HasSubstr("set_pipeline_stage_id(ln_f, 2)"), HasSubstr("has 2 stages"))));
  EXPECT_THAT(
      refused_assignment(
          2, [](Model& model, StageAssignment& stages) { stages.set_layer_idx(model->ln_f, 4); }),
      Each(AllOf(HasSubstr("set_layer_idx(ln_f, 4)"), HasSubstr("has 4 layers"))));
  EXPECT_THAT(refused_assignment(2,
                                 [](Model& model, StageAssignment& stages) {
                                   stages.set_pipeline_stage_id(model->ln_f, -2);
                                 }),
              Each(HasSubstr("-1 is the last one")));
  EXPECT_THAT(refused_assignment(2,
                                 [](Model&, StageAssignment& stages) {
                                   stages.set_pipeline_stage_id(torch::nn::Linear(2, 2), 0);
                                 }),
              Each(AllOf(HasSubstr("a torch::nn::Linear"), HasSubstr("no such module"))));
  EXPECT_THAT(refused_assignment(1,
                                 [](Model& model, StageAssignment& stages) {
                                   stages.set_pipeline_stage_id(model->ln_f, 1);
                                 }),
              Each(HasSubstr("has 1 stage")));
}

TEST(StageAssignment, RanksMustAssignAlike) {
  const auto errors = errors_of(2, [&](World world) {
    auto model = four_blocks();
    auto how = in(world);
    how.stages.set_pipeline_stage_id(model->ln_f, world.rank());
    initialize(model, Config::parse(kTwo), how);
  });
  EXPECT_THAT(errors, Each(HasSubstr("set_pipeline_stage_id(ln_f, ")));
}

}  // namespace
}  // namespace oslo::test
