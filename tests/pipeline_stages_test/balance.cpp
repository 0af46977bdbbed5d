// Stages balanced by cost: the cut against all cuts there are, and initialize by time and memory.
#include "parallelizers/stages/balance.h"

#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "parallelizers/plan/search/stage_balance.h"
#include "parallelizers/stages/stage_rule.h"
#include "tests/pipeline_stages_test/unequal.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// What the dearest stage costs.
double dearest(const Ids& ids, const std::vector<UnitCost>& costs) {
  double most = 0;
  for (size_t first = 0; first < ids.size();) {
    size_t last = first;
    while (last < ids.size() && ids[last] == ids[first]) ++last;
    most = std::max(most, cost_of_units(costs, static_cast<int>(first), static_cast<int>(last)));
    first = last;
  }
  return most;
}

/// The same of the best of all contiguous cuts, tried one after the other.
double least_of_all(int units, int stages, const std::vector<UnitCost>& costs) {
  return least_of_cuts(units, stages, [&](const Ids& ids) { return dearest(ids, costs); });
}

TEST(Balance, NoContiguousCutHasACheaperDearestStage) {
  const auto numbers = make_seeded(5, [] { return torch::rand({200, 20}, torch::kDouble); });
  const auto random = numbers.accessor<double, 2>();
  for (int trial = 0; trial < 200; ++trial) {
    const int units = 1 + trial % 11, stages = 1 + (trial / 11) % units;
    std::vector<UnitCost> costs;
    for (int i = 0; i < units; ++i) {
      costs.push_back({StageSet::of(i), std::pow(random[trial][i], 4)});
    }
    // Two tables that several units use.
    costs.push_back({StageSet::of(0) | StageSet::of(units - 1), random[trial][15]});
    costs.push_back({StageSet::of(trial % units) | StageSet::of(units / 2), random[trial][16]});
    const Ids ids = balanced_stages(units, stages, costs);
    ASSERT_EQ(std::ssize(ids), units);
    EXPECT_EQ(ids.front(), 0);
    EXPECT_EQ(ids.back(), stages - 1);
    for (int i = 1; i < units; ++i) EXPECT_THAT(ids[i] - ids[i - 1], testing::AnyOf(0, 1));
    EXPECT_DOUBLE_EQ(dearest(ids, costs), least_of_all(units, stages, costs));
  }
}

TEST(Balance, AmongEquallyGoodCutsTheRestIsEven) {
  EXPECT_THAT(balanced_stages(6, 3, alone({1, 1, 1, 1, 1, 1})), ElementsAre(0, 0, 1, 1, 2, 2));
  // The last unit is as dear as all others; those are not all on one stage.
  EXPECT_THAT(balanced_stages(5, 3, alone({1, 1, 1, 1, 9})), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(balanced_stages(64, 64, alone(std::vector<double>(64, 1))), testing::SizeIs(64));
}

TEST(Balance, UnequalLayersAreCutByTimeOrMemoryUnlikeEqualCounts) {
  const Plan counts = plan_of(R"({"parallel": {"pipeline": 3}})", 3);
  EXPECT_THAT(actual_stages(counts), ElementsAre(0, 0, 1, 1, 1, 2, 2, 2));
  for (const char* by : {"time", "memory"}) {
    const Plan plan =
        plan_of(c10::str(R"({"parallel": {"pipeline": 3}, "balance_stages": ")", by, "\"}"), 3);
    EXPECT_THAT(actual_stages(plan), ElementsAre(0, 1, 2, 2, 2, 2, 2, 2)) << by;
    EXPECT_EQ(plan.pipeline.why, c10::str("balanced by ", by));
    const auto slowest = [](const Plan& of) {
      return *std::max_element(of.pipeline.seconds.begin(), of.pipeline.seconds.end());
    };
    EXPECT_LT(slowest(plan), 0.8 * slowest(counts)) << by;
    EXPECT_THAT(plan.to_string(), HasSubstr(c10::str("pipeline of 3 stages, balanced by ", by)));
    EXPECT_THAT(plan.to_string(),
                AllOf(HasSubstr("layers.2 to layers.7"), HasSubstr("share of time")));
  }
  EXPECT_THAT(counts.to_string(), HasSubstr("pipeline of 3 stages, by LiBai's rule"));
}

/// The layers' own times, from a run with a stage for each, are what the cut is best for.
TEST(Balance, TheSlowestStageOfAModelIsTheQuickestThereCanBe) {
  const Plan each = plan_of(R"({"parallel": {"pipeline": 8}})", 8);
  for (const int stages : {2, 3, 4, 5}) {
    const Plan plan = plan_of(
        c10::str(R"({"balance_stages": "time", "parallel": {"pipeline": )", stages, "}}"), stages);
    const auto costs = alone(each.pipeline.seconds);
    EXPECT_NEAR(dearest(actual_stages(plan), costs), least_of_all(8, stages, costs), 1e-12);
    const auto& seconds = plan.pipeline.seconds;
    EXPECT_NEAR(*std::max_element(seconds.begin(), seconds.end()),
                dearest(actual_stages(plan), costs), 1e-9);
  }
}

TEST(Balance, AtMoreLayersThanStagesThereCanBeNeighboursAreOne) {
  struct Deep : torch::nn::Module {
    Deep() {
      layers = register_module("layers", torch::nn::ModuleList());
      for (int i = 0; i < 70; ++i) {
        layers->push_back(torch::nn::Sequential(torch::nn::Linear(2, i < 35 ? 30 : 10)));
      }
    }
    torch::nn::ModuleList layers{nullptr};
  };
  const auto model = std::make_shared<Deep>();
  const ModelView view(model);
  const std::vector<LayerPlan> none;
  const PlanAxes axes(1);
  const std::function<void()> no_example;
  const Ids ids = stages_by_memory({view, none, axes, no_example}, {2, 70, {}, {}});
  ASSERT_EQ(ids.size(), 70u);
  // 35 layers of 30 rows and 35 of 10: half of the rows are in the first 23 or 24.
  const auto first = std::count(ids.begin(), ids.end(), 0);
  EXPECT_GE(first, 22);
  EXPECT_LE(first, 25);
}

TEST(Balance, MemoryNeedsNoExampleAndTimeDoes) {
  EXPECT_THAT(
      actual_stages(plan_of(R"({"parallel": {"pipeline": 2}, "balance_stages": "memory"})", 2,
                            /*example=*/false)),
      ElementsAre(0, 1, 1, 1, 1, 1, 1, 1));
  const auto errors = errors_of(2, [](World world) {
    auto model = make_seeded(1, [] { return Unequal(); });
    initialize(model, Config::parse(R"({"parallel": {"pipeline": 2}, "balance_stages": "time"})"),
               in(world));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("'balance_stages' is time"), HasSubstr("example_inputs"),
                                 HasSubstr("\"memory\""))));
}

}  // namespace
}  // namespace oslo::test
