// Stages balanced where ranks have several: what the dearest rank has, against all cuts there are.
#include "parallelizers/stages/rank_balance.h"

#include <gmock/gmock.h>

#include <cmath>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "tests/pipeline_stages_test/unequal.h"

namespace oslo::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

/// What the dearest rank costs.
double dearest_rank(const Ids& ids, const Ids& rank_of_stage, const std::vector<UnitCost>& costs) {
  std::vector<StageSet> held(rank_of_stage.size());
  for (size_t unit = 0; unit < ids.size(); ++unit) {
    StageSet& own = held[rank_of_stage[ids[unit]]];
    own = own | StageSet::of(static_cast<int>(unit));
  }
  double most = 0;
  for (const StageSet own : held) {
    double sum = 0;
    for (const UnitCost& each : costs) sum += (each.units & own).empty() ? 0 : each.cost;
    most = std::max(most, sum);
  }
  return most;
}

double least_rank(int units, const Ids& rank_of_stage, const std::vector<UnitCost>& costs) {
  return least_of_cuts(units, static_cast<int>(rank_of_stage.size()),
                       [&](const Ids& ids) { return dearest_rank(ids, rank_of_stage, costs); });
}

TEST(RankBalance, NoContiguousCutHasACheaperDearestRank) {
  const auto numbers = make_seeded(6, [] { return torch::rand({160, 20}, torch::kDouble); });
  const auto random = numbers.accessor<double, 2>();
  int unlike_stages = 0;
  for (int trial = 0; trial < 160; ++trial) {
    const Ids rank_of_stage = pipeline::rank_of_stage(trial % 2 == 0 ? "interleaved" : "zbv",
                                                      2 + trial / 2 % 2, /*chunks=*/2);
    const auto stages = static_cast<int>(rank_of_stage.size());
    const int units = stages + trial / 4 % 5;
    std::vector<UnitCost> costs;
    for (int i = 0; i < units; ++i) {
      costs.push_back({StageSet::of(i), std::pow(random[trial][i], 4)});
    }
    // Two tables that several units use: a rank with both of them has them once.
    costs.push_back({StageSet::of(0) | StageSet::of(units - 1), random[trial][15]});
    costs.push_back({StageSet::of(trial % units) | StageSet::of(units / 2), random[trial][16]});
    const Ids ids = balanced_ranks(units, rank_of_stage, costs);
    ASSERT_EQ(std::ssize(ids), units);
    EXPECT_EQ(ids.front(), 0);
    EXPECT_EQ(ids.back(), stages - 1);
    for (int i = 1; i < units; ++i) EXPECT_THAT(ids[i] - ids[i - 1], AnyOf(0, 1));
    const double found = dearest_rank(ids, rank_of_stage, costs);
    EXPECT_NEAR(found, least_rank(units, rank_of_stage, costs), 1e-12) << trial;
    const Ids by_stage = balanced_stages(units, stages, costs);
    unlike_stages += found < dearest_rank(by_stage, rank_of_stage, costs) - 1e-12;
  }
  EXPECT_GT(unlike_stages, 40);  // stages that are balanced one by one are another answer
}

TEST(RankBalance, OneStageARankIsBalancedByStages) {
  const auto costs = alone({3, 1, 1, 2, 5, 1});
  EXPECT_EQ(balanced_ranks(6, {0, 1, 2}, costs), balanced_stages(6, 3, costs));
}

/// 64 units on 16 stages cannot all be tried.
TEST(RankBalance, ManyUnitsOnManyStagesAreNearlyEven) {
  const Ids rank_of_stage = pipeline::rank_of_stage("zbv", 8, 2);
  const auto numbers = make_seeded(7, [] { return 1 + torch::rand({64}, torch::kDouble); });
  std::vector<double> costs(numbers.const_data_ptr<double>(),
                            numbers.const_data_ptr<double>() + numbers.numel());
  const Ids ids = balanced_ranks(64, rank_of_stage, alone(costs));
  const double even = numbers.sum().item<double>() / 8;
  EXPECT_LT(dearest_rank(ids, rank_of_stage, alone(costs)), 1.1 * even);
}

/// The layers' own times are those of a run with a stage for each.
TEST(RankBalance, TheSlowestRankOfAModelIsTheQuickestThereCanBe) {
  const auto costs = alone(plan_of(R"({"parallel": {"pipeline": 8}})", 8).pipeline.seconds);
  for (const char* kind : {"interleaved", "zbv"}) {
    const Ids ranks = pipeline::rank_of_stage(kind, 2, 2);
    const std::string shape =
        c10::str(R"("parallel": {"pipeline": {"size": 2, "schedule": ")", kind, R"("}})");
    const Plan counts = plan_of("{" + shape + "}", 2);
    for (const char* by : {"time", "memory"}) {
      const Plan plan = plan_of("{" + shape + c10::str(R"(, "balance_stages": ")", by, "\"}"), 2);
      EXPECT_EQ(plan.pipeline.why, c10::str("balanced by ", by));
      EXPECT_THAT(plan.to_string(), HasSubstr(c10::str("pipeline of 4 stages, balanced by ", by)));
      const double slowest = dearest_rank(actual_stages(plan), ranks, costs);
      EXPECT_LT(slowest, 0.9 * dearest_rank(actual_stages(counts), ranks, costs)) << kind << by;
      if (by == std::string("time")) {
        EXPECT_NEAR(slowest, least_rank(8, ranks, costs), 1e-9) << kind;
      }
    }
  }
}

}  // namespace
}  // namespace oslo::test
