// Makespans, bubbles and peaks, beside what papers and other systems give; and every kind at random
// sizes.
#include <gmock/gmock.h>

#include <map>
#include <random>
#include <tuple>

#include "parallelizers/pipeline/schedule/order/check.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/order/text.h"
#include "parallelizers/pipeline/schedule/timeline/bubble_formula.h"
#include "parallelizers/pipeline/schedule/timeline/simulate.h"
#include "tests/support/error_of.h"

namespace {

namespace pipeline = oslo::pipeline;
using pipeline::Pass;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kRounding = 1e-9;  // of sums of some thousand costs of about 1

pipeline::Costs alike(int stages, double forward, double input, double weight, double hop = 0) {
  return {std::vector<double>(stages, forward), std::vector<double>(stages, input),
          std::vector<double>(stages, weight), hop};
}

pipeline::Timeline simulated(const pipeline::ScheduleOptions& options, double forward = 1,
                             double input = 1, double weight = 1, double hop = 0) {
  const pipeline::Schedule schedule = pipeline::make_schedule(options);
  return pipeline::simulate(schedule, pipeline::Graph::chain(schedule.stages()),
                            alike(schedule.stages(), forward, input, weight, hop));
}

// What each rank waits between its first action and its last.
std::vector<double> gaps(const pipeline::Timeline& timeline) {
  std::vector<double> found;
  for (const pipeline::RankUse& use : use_of(timeline)) {
    found.push_back(use.waiting + use.communicating);
  }
  return found;
}

std::vector<int> kept_until_weight(const pipeline::ScheduleOptions& options) {
  std::vector<int> peaks;
  for (const pipeline::Peak& peak : peaks_of(pipeline::make_schedule(options))) {
    peaks.push_back(peak.until_weight);
  }
  return peaks;
}

std::vector<int> kept_until_input(const pipeline::ScheduleOptions& options) {
  std::vector<int> peaks;
  for (const pipeline::Peak& peak : peaks_of(pipeline::make_schedule(options))) {
    peaks.push_back(peak.until_input);
  }
  return peaks;
}

TEST(PipelineScheduleNumbers, Makespans) {
  const std::vector<std::tuple<const char*, int, int, int, double>> golden = {
      {"naive", 4, 8, 1, 96},        {"gpipe", 4, 8, 1, 33},         {"1f1b", 4, 8, 1, 33},
      {"interleaved", 4, 8, 2, 57},  {"zero_bubble", 2, 4, 1, 13},   {"zero_bubble", 2, 8, 1, 25},
      {"zero_bubble", 4, 4, 1, 15},  {"zero_bubble", 4, 8, 1, 27},   {"zero_bubble", 4, 16, 1, 51},
      {"zero_bubble", 8, 16, 1, 55}, {"zero_bubble", 8, 32, 1, 103}, {"zero_bubble", 2, 4, 2, 25},
      {"zero_bubble", 4, 8, 2, 51},  {"zero_bubble", 8, 32, 2, 199}, {"zbv", 2, 4, 2, 25},
      {"zbv", 4, 4, 2, 30},          {"zbv", 4, 8, 2, 51},           {"zbv", 8, 32, 2, 199},
      {"dualpipev", 4, 8, 2, 51},    {"dualpipev", 8, 32, 2, 199}};
  for (const auto& [kind, ranks, micro_batches, chunks, makespan] : golden) {
    EXPECT_EQ(simulated({kind, ranks, micro_batches, chunks}).span(), makespan)
        << kind << " on " << ranks << " ranks, " << micro_batches << " micro-batches";
  }
}

TEST(PipelineScheduleNumbers, WaitsWithinARanksOwnSpan) {
  EXPECT_THAT(gaps(simulated({"zero_bubble", 4, 8})), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(gaps(simulated({"zbv", 4, 8})), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(gaps(simulated({"dualpipev", 4, 8})), ElementsAre(3, 2, 1, 0));
  const pipeline::Timeline zbv = simulated({"zbv", 4, 8});
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(zbv.ranks[rank].back().end, 48 + rank);
}

TEST(PipelineScheduleNumbers, UnequalPasses) {
  EXPECT_NEAR(simulated({"zero_bubble", 4, 8}, 1, 1.3, 0.7).span(), 28.8, kRounding);
  EXPECT_NEAR(simulated({"zbv", 4, 8}, 1, 1.3, 0.7).span(), 51.9, kRounding);
  EXPECT_NEAR(simulated({"dualpipev", 4, 8}, 1, 1.3, 0.7).span(), 52.8, kRounding);
  EXPECT_NEAR(simulated({"1f1b", 4, 8}, 1, 1.3, 0.7).span(), 33, kRounding);
  const std::vector<double> zbv = gaps(simulated({"zbv", 4, 8}, 1, 1.3, 0.7));
  EXPECT_NEAR(zbv.front(), 3.6, kRounding);
  EXPECT_NEAR(zbv.back(), 0.9, kRounding);
}

// A hop costs GPipe 2 (p - 1) hops. Under 1F1B it costs more: a rank's next forward starts behind a
// backward that waits for the next rank's, so that neighbours answer each other.
TEST(PipelineScheduleNumbers, Hops) {
  EXPECT_EQ(simulated({"gpipe", 4, 8}, 1, 1, 1, 0.25).span(), 34.5);
  EXPECT_EQ(simulated({"1f1b", 4, 8}, 1, 1, 1, 0.25).span(), 37);
  EXPECT_EQ(simulated({"zero_bubble", 4, 8}, 1, 1, 1, 0.25).span(), 30);
  EXPECT_EQ(simulated({"zbv", 4, 8}, 1, 1, 1, 0.25).span(), 54.25);
  // Of what a rank waits for, the last hop is communication.
  const auto uses = use_of(simulated({"naive", 2, 1}, 1, 1, 1, 0.25));
  EXPECT_EQ(uses[0].communicating, 0.25);
  EXPECT_EQ(uses[0].waiting, 3.25);
  EXPECT_EQ(uses[1].idle, 3.5);
}

TEST(PipelineScheduleNumbers, StagesThatCostMore) {
  const pipeline::Schedule schedule = pipeline::make_schedule({"1f1b", 2, 4});
  pipeline::Costs costs = alike(2, 1, 1, 1);
  costs.forward[1] = 3;
  // Rank 1 computes without a pause from 1 on; its last gradient takes rank 0 another 2.
  const pipeline::Timeline timeline =
      pipeline::simulate(schedule, pipeline::Graph::chain(2), costs);
  EXPECT_EQ(timeline.span(), 1 + 4 * 5 + 2);
  EXPECT_EQ(use_of(timeline)[1].bubble(), 1 - 20.0 / 23);
}

TEST(PipelineScheduleNumbers, ActivationsKept) {
  EXPECT_THAT(kept_until_weight({"naive", 4, 8}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(kept_until_weight({"gpipe", 4, 8}), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(kept_until_weight({"1f1b", 4, 8}), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(kept_until_weight({"interleaved", 4, 8, 2}), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(kept_until_weight({"zero_bubble", 4, 8}), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(kept_until_input({"zero_bubble", 4, 8}), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(kept_until_weight({"zero_bubble", 4, 8, 2}), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(kept_until_input({"zero_bubble", 4, 8, 2}), ElementsAre(8, 7, 6, 5));
  EXPECT_THAT(kept_until_weight({"zbv", 4, 8}), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(kept_until_input({"zbv", 4, 8}), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(kept_until_weight({"dualpipev", 4, 8}), ElementsAre(9, 9, 9, 9));
}

TEST(PipelineScheduleNumbers, SizesOfInterleaved) {
  for (const auto& [chunks, micro_batches, ranks] :
       std::vector<std::tuple<int, int, int>>{{2, 2, 2},
                                              {2, 4, 4},
                                              {2, 8, 2},
                                              {2, 8, 4},
                                              {4, 8, 4},
                                              {4, 16, 16},
                                              {3, 12, 4},
                                              {4, 6, 3},
                                              {4, 10, 5},
                                              {2, 3, 4},
                                              {2, 10, 4}}) {
    for (const char* kind : {"interleaved", "zero_bubble"}) {
      EXPECT_GT(simulated({kind, ranks, micro_batches, chunks}).span(), 0);
    }
  }
  using oslo::test::error_of;
  for (const char* kind : {"interleaved", "zero_bubble"}) {
    EXPECT_THAT(error_of([&] {
                  pipeline::make_schedule({kind, 2, 9, 2});
                }),
                HasSubstr("9 micro-batches do not fill 4 equal rounds over 2 ranks; take 8 or 10"));
    EXPECT_THAT(
        error_of([&] {
          pipeline::make_schedule({kind, 4, 11, 2});
        }),
        HasSubstr("11 micro-batches do not fill 2 equal rounds over 4 ranks; take 10 or 12"));
  }
}

TEST(PipelineScheduleNumbers, WhatCannotBeIsRefused) {
  const auto error = [](const pipeline::ScheduleOptions& options) {
    return oslo::test::error_of([&] { pipeline::make_schedule(options); });
  };
  EXPECT_THAT(error({"1F1B", 2, 2}), HasSubstr("\"1F1B\" is unknown; there are naive, gpipe, 1f1b, "
                                               "interleaved, zero_bubble, zbv, dualpipev"));
  EXPECT_THAT(error({"dualpipev", 2, 3}),
              HasSubstr("3 micro-batches are fewer than its 4 stages on 2 ranks; take at least 4"));
  EXPECT_THAT(error({"1f1b", 2, 2, 2}), HasSubstr("1f1b has 1 stage a rank, not 2; interleaved"));
  EXPECT_THAT(error({"interleaved", 2, 2, 1}), HasSubstr("at least 2 stages a rank, not 1; 1f1b"));
  EXPECT_THAT(error({"zbv", 2, 4, 3}), HasSubstr("zbv has 2 stages a rank, not 3"));
  EXPECT_THAT(error({"gpipe", 0, 4}), HasSubstr("0 ranks: at least 1"));
  EXPECT_THAT(error({"gpipe", 2, 0}), HasSubstr("0 micro-batches: at least 1"));
  EXPECT_THAT(error({"gpipe", 2, 2, -1}), HasSubstr("-1 stages a rank: at least 1"));
}

bool is_possible(const pipeline::ScheduleOptions& options) {
  try {
    pipeline::make_schedule(options);
    return true;
  } catch (const oslo::Error&) {
    return false;
  }
}

struct RandomSizes {
  std::mt19937 generator{7};
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); }
  double cost() { return number(1, 40) / 8.0; }
  // Sizes that the kind takes.
  pipeline::ScheduleOptions options(const std::string& kind) {
    for (;;) {
      pipeline::ScheduleOptions options{kind, number(1, 7), number(1, 20), 0};
      if (kind == "interleaved" || kind == "zero_bubble") options.chunks = number(2, 4);
      if (kind == "zero_bubble" && number(0, 1) == 0) options.chunks = 1;
      if (is_possible(options)) return options;
    }
  }
};

// Every (stage, micro-batch) is computed once for each pass, in an order that stages and passes
// need; and ranks can follow the lists, with the backward passes and without.
void expect_whole(const pipeline::Schedule& schedule) {
  const pipeline::Timeline timeline = pipeline::simulate(
      schedule, pipeline::Graph::chain(schedule.stages()), alike(schedule.stages(), 1, 1, 1, 0.5));
  std::map<pipeline::Action, const pipeline::Timeline::Event*> ran;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const pipeline::Timeline::Event& event : timeline.ranks[rank]) {
      if (event.doing != pipeline::Timeline::Doing::compute) continue;
      EXPECT_EQ(schedule.rank_of_stage[event.action.stage], rank);
      EXPECT_TRUE(ran.emplace(event.action, &event).second);
    }
  }
  const auto event_of = [&](Pass pass, int stage, int micro_batch) {
    const auto found = ran.find({pass, stage, micro_batch});
    return found == ran.end() ? nullptr : found->second;
  };
  size_t expected = 0;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int i = 0; i < schedule.micro_batches; ++i) {
      const auto* const forward = event_of(Pass::forward, stage, i);
      const auto* const whole = event_of(Pass::backward, stage, i);
      const auto* const input = event_of(Pass::backward_input, stage, i);
      const auto* const weight = event_of(Pass::backward_weight, stage, i);
      ASSERT_NE(forward, nullptr);
      ASSERT_EQ(whole == nullptr, input != nullptr);
      ASSERT_EQ(input == nullptr, weight == nullptr);
      expected += whole != nullptr ? 2 : 3;
      const auto* const back = whole != nullptr ? whole : input;
      EXPECT_LE(forward->end, back->begin);
      if (weight != nullptr) {
        EXPECT_LE(input->end, weight->begin);
      }
      if (stage + 1 == schedule.stages()) continue;
      const bool hops = schedule.rank_of_stage[stage] != schedule.rank_of_stage[stage + 1];
      const double hop = hops ? 0.5 : 0;
      EXPECT_LE(forward->end + hop, event_of(Pass::forward, stage + 1, i)->begin);
      const auto* const above = event_of(Pass::backward, stage + 1, i) != nullptr
                                    ? event_of(Pass::backward, stage + 1, i)
                                    : event_of(Pass::backward_input, stage + 1, i);
      EXPECT_LE(above->end + hop, back->begin);
    }
  }
  EXPECT_EQ(ran.size(), expected);
}

TEST(PipelineScheduleNumbers, EveryKindAtRandomSizes) {
  RandomSizes random;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    for (int i = 0; i < 60; ++i) {
      const pipeline::ScheduleOptions options = random.options(kind);
      const pipeline::Schedule schedule = pipeline::make_schedule(options);
      SCOPED_TRACE(pipeline::to_text(schedule));
      expect_whole(schedule);
      EXPECT_EQ(pipeline::parse_schedule(pipeline::to_text(schedule)), schedule);
      const pipeline::Schedule forwards = pipeline::forward_only(schedule);
      pipeline::check_runs(forwards, pipeline::Graph::chain(forwards.stages()));
      for (int rank = 0; rank < options.ranks; ++rank) {
        EXPECT_EQ(forwards.actions[rank].size(),
                  static_cast<size_t>(schedule.chunks * schedule.micro_batches));
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(PipelineScheduleNumbers, FormulasAreWhatTheSimulatorFinds) {
  RandomSizes random;
  std::map<std::string, int> held;
  for (const std::string& kind : pipeline::schedule_kinds()) {
    for (int i = 0; i < 200; ++i) {
      const pipeline::ScheduleOptions options = random.options(kind);
      const double forward = random.cost();
      const bool equal = kind == "zbv";
      const double input = equal ? forward : random.cost();
      const double weight = equal ? forward : random.cost();
      const auto formula = pipeline::bubble_formula(options, forward, input, weight);
      if (!formula) continue;
      ++held[kind];
      const pipeline::Timeline timeline = simulated(options, forward, input, weight);
      SCOPED_TRACE(::testing::Message() << pipeline::to_text(pipeline::make_schedule(options))
                                        << " F " << forward << " I " << input << " W " << weight);
      EXPECT_NEAR(timeline.span(), formula->makespan, kRounding * formula->makespan);
      EXPECT_NEAR(pipeline::bubble_of(timeline), formula->bubble, kRounding);
      if (::testing::Test::HasFailure()) return;
    }
  }
  for (const std::string& kind : pipeline::schedule_kinds()) EXPECT_GT(held[kind], 20) << kind;
}

}  // namespace
