// initialize with pipeline stages: who holds what afterwards, in each dialect, and what a forward
// without a schedule does.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "tests/models/gpt2.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using torch::Tensor;

models::GPT2 make_model() {
  return make_seeded(3, [] {
    models::GPT2Options options;
    options.layers = 4;
    options.hidden = 8;
    options.heads = 2;
    options.vocabulary = 13;
    return models::GPT2(options);
  });
}

Tensor some_tokens() {
  return torch::arange(15).mul(7).remainder(13).view({3, 5});
}

constexpr const char* kDialects[] = {
    R"({"model_parallelism": {"pipeline_parallel_size": 2}})",
    R"({"train": {"dist": {"pipeline_parallel_size": 2, "pipeline_num_layers": 4}}})",
    R"({"parallel": {"pipeline": {"size": 2}}})",
    R"({"parallel": {"pipeline": 2}, "stages": {"h.0-1": 0, "h.2-3": [1], "ln_f": 1}})",
};

TEST(PipelineInitialize, EachRankHoldsItsStageAlone) {
  const auto plain = make_model();
  for (const char* config : kDialects) {
    run_as_threads(2, [&](World world) {
      auto model = make_model();
      auto how = in(world);
      how.example_inputs = [&] { model->forward(some_tokens()); };
      const ParallelModel parallel = initialize(model, Config::parse(config), how);
      parallel.check();
      const int own = parallel.mpu().get_pipeline_parallel_rank();
      const auto expected = plain->named_parameters();
      for (const auto& item : model->named_parameters()) {
        const std::string& name = item.key();
        const bool first = name.starts_with("h.0") || name.starts_with("h.1") || name[0] == 'w';
        const bool both = name == "wte.weight";  // the head is its transpose
        const bool here = both || own == (first ? 0 : 1);
        EXPECT_EQ(is_here(item.value()), here) << name;
        EXPECT_EQ(item.value().has_storage(), here) << name;
        EXPECT_TRUE(item.value().is_leaf() && item.value().requires_grad()) << name;
        EXPECT_EQ(item.value().sizes(), expected[name].sizes()) << name;
        // Whole again, from whoever holds it.
        const Tensor whole = full_tensor(item.value());
        EXPECT_FALSE(is_placed(whole) || whole.requires_grad()) << name;
        EXPECT_TRUE(torch::equal(whole, expected[name])) << name;
      }
    });
  }
}

TEST(PipelineInitialize, ThePlanShowsStages) {
  run_as_threads(2, [](World world) {
    auto model = make_model();
    auto how = in(world);
    how.example_inputs = [&] { model->forward(some_tokens()); };
    const ParallelModel parallel = initialize(model, Config::parse(kDialects[0]), how);
    const Plan plan = parallel.plan();
    const auto entry = [&](const std::string& name) -> const PlanEntry& {
      return *std::find_if(plan.entries.begin(), plan.entries.end(),
                           [&](const PlanEntry& each) { return each.parameter == name; });
    };
    EXPECT_EQ(entry("h.3.ln_1.weight").stage, 1);
    EXPECT_THAT(entry("wte.weight").stages, testing::ElementsAre(0, 1));
    EXPECT_EQ(entry("h.3.ln_1.weight").local_bytes, world.rank() == 1 ? 32 : 0);
    EXPECT_EQ(entry("h.3.ln_1.weight").global_bytes, 32);
    EXPECT_THAT(plan.to_string(), AllOf(HasSubstr("stage"), HasSubstr("0, 1")));
    EXPECT_EQ(plan.to_json()["parameters"][0]["stages"].dump(), "[0,1]");
    EXPECT_THAT(plan.to_string(), HasSubstr("pipeline of 2 stages, by LiBai's rule"));
    EXPECT_THAT(plan.to_string(), testing::ContainsRegex("0 +h.0 to h.1 +8416 B +[0-9]+%"));
    EXPECT_THAT(plan.to_string(), testing::ContainsRegex("1 +h.2 to h.3 +7456 B +[0-9]+%"));
    EXPECT_NEAR(plan.pipeline.share(0) + plan.pipeline.share(1), 1, 1e-12);
    EXPECT_EQ(plan.to_json()["pipeline_stages_by"], "by LiBai's rule");
    EXPECT_GT(plan.to_json()["pipeline_stages"][1]["seconds"].get<double>(), 0);
    EXPECT_EQ(plan.to_json()["actual_pipeline_stage_id"].dump(), "[0,0,1,1]");
    EXPECT_EQ(plan.to_json()["auto_pipeline_stage_id"].dump(), "[0,0,1,1]");
    const int64_t own = plan.local_bytes();
    int64_t held = 0;
    for (const Tensor& parameter : model->parameters()) {
      if (is_here(parameter)) held += parameter.numel() * 4;
    }
    EXPECT_EQ(own, held);
  });
}

TEST(PipelineInitialize, ABareForwardWithoutGradientsEvaluates) {
  auto plain = make_model();
  const Tensor expected = plain->forward(some_tokens());
  for (const int stages : {2, 4}) {
    run_as_threads(stages, [&](World world) {
      auto model = make_model();
      auto how = in(world);
      how.example_inputs = [&] { model->forward(some_tokens()); };
      Config config = Config::parse(kDialects[0]);
      config.set(c10::str("model_parallelism.pipeline_parallel_size=", stages));
      const ParallelModel parallel = initialize(model, config, how);
      Ledger& ledger = parallel.mpu().pipeline_group()->ledger();
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 2; ++i) {
        const Tensor output = model->forward(some_tokens());
        EXPECT_EQ(layout(output)->stages(), StageSet::of(stages - 1));
        EXPECT_EQ(is_here(output), world.rank() == stages - 1);
        const Tensor whole = full_tensor(output);
        EXPECT_FALSE(is_placed(whole));
        EXPECT_TRUE(torch::allclose(whole, expected, 1e-5, 1e-6));
      }
      // One activation to the next stage, twice.
      EXPECT_EQ(ledger.total("send").calls, world.rank() < stages - 1 ? 2 : 0);
      EXPECT_EQ(ledger.total("receive").calls, world.rank() > 0 ? 2 : 0);
    });
  }
}

std::vector<std::string> refused(int size, const std::string& config,
                                 const std::function<void(models::GPT2&)>& body = {},
                                 bool example = true) {
  return errors_of(size, [&](World world) {
    auto model = make_model();
    auto how = in(world);
    if (example) how.example_inputs = [&] { model->forward(some_tokens()); };
    const ParallelModel parallel = initialize(model, Config::parse(config), how);
    if (body) body(model);
  });
}

TEST(PipelineInitialize, ATrainingStepNeedsASchedule) {
  EXPECT_THAT(refused(2, kDialects[0], [](models::GPT2& model) { model->forward(some_tokens()); }),
              Each(AllOf(HasSubstr("stage 1"), HasSubstr("PipelineSchedule"))));
}

TEST(PipelineInitialize, WithoutAnExampleAUseElsewhereIsRefusedByName) {
  const auto evaluate = [](models::GPT2& model) {
    const torch::NoGradGuard no_grad;
    model->forward(some_tokens());
  };
  EXPECT_THAT(refused(2, kDialects[0], evaluate, /*example=*/false),
              Each(AllOf(HasSubstr("wte.weight"), HasSubstr("stage 0"),
                         HasSubstr("\"stages\": {\"wte.weight\": [0, 1]}"))));
  const std::string both = R"({"parallel": {"pipeline": 2}, "stages": {"wte.weight": [0, 1]}})";
  EXPECT_THAT(refused(2, both, evaluate, /*example=*/false), Each(""));
}

TEST(PipelineInitialize, WrongStagesAreRefusedOnEveryRank) {
  EXPECT_THAT(refused(5, R"({"model_parallelism": {"pipeline_parallel_size": 5}})"),
              Each(AllOf(HasSubstr("5 stages"), HasSubstr("4 layers (h.0 to h.3)"))));
  EXPECT_THAT(refused(2, R"({"train": {"dist": {"pipeline_parallel_size": 2}}})"),
              Each(HasSubstr("needs 'train.dist.pipeline_num_layers'")));
  EXPECT_THAT(refused(2, R"({"train": {"dist": {"pipeline_parallel_size": 2,
                             "pipeline_num_layers": 24}}})"),
              Each(AllOf(HasSubstr("is 24"), HasSubstr("4 layers"))));
  EXPECT_THAT(refused(2, R"({"train": {"dist": {"pipeline_parallel_size": 2,
                             "custom_pipeline_stage_id": [0, 1, 0, 1]}}})"),
              Each(HasSubstr("0 after 1 at layer 2")));
  EXPECT_THAT(refused(1, R"({"stages": {"h.0": 1}})"), Each(HasSubstr("has 1 stage")));
}

TEST(PipelineInitialize, TheRanksOfAStageMayBeNamedAxes) {
  run_as_threads(2, [](World world) {
    auto model = make_model();
    auto how = in(world);
    how.axes = {{"pipeline", 2}};
    const ParallelModel parallel = initialize(model, Config(), how);
    EXPECT_EQ(is_here(model->ln_f->weight), world.rank() == 1);
  });
}

}  // namespace
}  // namespace oslo::test
