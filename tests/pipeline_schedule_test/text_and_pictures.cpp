// What schedules and timelines are written as, and read from.
#include <gmock/gmock.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/order/text.h"
#include "parallelizers/pipeline/schedule/timeline/chrome_trace.h"
#include "parallelizers/pipeline/schedule/timeline/measured.h"
#include "parallelizers/pipeline/schedule/timeline/recorder.h"
#include "parallelizers/pipeline/schedule/timeline/report.h"
#include "parallelizers/pipeline/schedule/timeline/simulate.h"
#include "parallelizers/pipeline/schedule/timeline/svg.h"
#include "tests/support/error_of.h"

namespace {

namespace pipeline = oslo::pipeline;
using oslo::test::error_of;
using pipeline::Pass;
using ::testing::HasSubstr;
using Doing = pipeline::Timeline::Doing;

pipeline::Timeline example(const std::string& kind, double hop = 0.25) {
  const pipeline::Schedule schedule = pipeline::make_schedule({kind, 2, 4});
  pipeline::Costs costs = pipeline::Costs::unit(schedule.stages());
  costs.hop = hop;
  return pipeline::simulate(schedule, pipeline::Graph::chain(schedule.stages()), costs);
}

TEST(PipelineScheduleText, CommentsAndStagesGiven) {
  const pipeline::Schedule schedule = pipeline::parse_schedule(
      "# of one's own\n\nmine ranks 2 micro_batches 1 chunks 1   # sizes\n"
      "rank 0: 1F0 1I0 1W0\nrank 1: 0F0 0B0  # the first stage\n");
  EXPECT_EQ(schedule.rank_of_stage, (std::vector<int>{1, 0}));
  EXPECT_EQ(schedule.actions[0][1], (pipeline::Action{Pass::backward_input, 1, 0}));
  EXPECT_EQ(pipeline::parse_schedule(pipeline::to_text(schedule)), schedule);
}

TEST(PipelineScheduleText, ErrorsNameTheLineAndTheWord) {
  const auto error = [](const std::string& lists,
                        const std::string& sizes = "x ranks 1 micro_batches 1 chunks 1") {
    return error_of([&] { pipeline::parse_schedule(sizes + "\n" + lists); });
  };
  EXPECT_THAT(error("", ""), HasSubstr("nothing there"));
  EXPECT_THAT(error("", "1f1b rank 2"), HasSubstr("line 1: \"ranks\" is expected, not \"rank\""));
  EXPECT_THAT(error("", "1f1b ranks two"), HasSubstr("a number is expected, not \"two\""));
  EXPECT_THAT(error("", "1f1b ranks 0 micro_batches 1 chunks 1"),
              HasSubstr("ranks of at least 1 are expected, not \"0\""));
  EXPECT_THAT(error("", "x ranks 1 micro_batches 1 chunks 1 more"),
              HasSubstr("nothing more, not \"more\""));
  EXPECT_THAT(error("", "x ranks 9999999 micro_batches 1 chunks 1"), HasSubstr("\"9999999\""));
  EXPECT_THAT(error("rank 0: F0 Q0"),
              HasSubstr("line 2: an action as 2F0 is expected, not \"Q0\""));
  EXPECT_THAT(error("rank 0: F"), HasSubstr("a number is expected, not the end of the line"));
  EXPECT_THAT(error("rank 1: F0"), HasSubstr("\"0:\" is expected, not \"1:\""));
  EXPECT_THAT(error(""), HasSubstr("lists of 0 ranks, but \"ranks 1\""));
  EXPECT_THAT(error("rank 0: F0 F1"), HasSubstr("0F1: there are 1 micro-batches, from 0"));
  EXPECT_THAT(error("rank 0: 1F0"), HasSubstr("1F0 of rank 0: there are 1 stages, from 0"));
  EXPECT_THAT(error("rank 0: F0 F0"), HasSubstr("0F0 stands twice"));
  EXPECT_THAT(error("rank 0: B0 F0"), HasSubstr("0B0 stands before its forward"));
  EXPECT_THAT(error("rank 0: F0 W0 I0"), HasSubstr("0W0 stands before its I"));
  EXPECT_THAT(error("rank 0: F0 B0 W0"),
              HasSubstr("0W0 stands beside a backward of the other form"));
  EXPECT_THAT(error("rank 0: F0 I0 B0"),
              HasSubstr("0B0 stands beside a backward of the other form"));
  EXPECT_THAT(error("rank 0: F0 I0"), HasSubstr("0W0 is missing"));
  const std::string two = "x ranks 1 micro_batches 2 chunks 1";
  EXPECT_THAT(error("rank 0: F0 F1 B0", two), HasSubstr("0B1 is missing"));
  EXPECT_THAT(error("rank 0: F0", two), HasSubstr("0F1 is missing"));
  const std::string chunks = "x ranks 2 micro_batches 1 chunks 2";
  EXPECT_THAT(error("rank 0: F0\nrank 1: 1F0", chunks), HasSubstr("with its stage, as 2F0"));
  EXPECT_THAT(error("rank 0: 0F0\nrank 1: 0B0", chunks),
              HasSubstr("stage 0 is on rank 0 and on rank 1"));
  EXPECT_THAT(error("rank 0: 0F0 1F0 2F0\nrank 1: 3F0", chunks),
              HasSubstr("rank 0 has 3 stages, not 2"));
}

TEST(PipelineScheduleText, Grid) {
  EXPECT_EQ(pipeline::grid(example("1f1b", 0), true),
            "rank 0  F0 F1 ..... B0=== F2 B1=== F3 B2=== .. B3===\n"
            "rank 1     F0 B0=== F1 B1=== F2 B2=== F3 B3===\n");
  EXPECT_EQ(pipeline::grid(example("1f1b", 0), true, 40), "");
  // Waiting, and then the time that the message takes.
  EXPECT_THAT(pipeline::grid(example("naive", 1), false),
              HasSubstr("rank 0  0F0 ............... ... 0B0==== 0F1"));
}

// The four kinds of time add up, and what interrupts an action is no work.
TEST(PipelineScheduleTimelines, WhatInterruptsAnActionIsNoWork) {
  const pipeline::Timeline timeline{{{{Doing::wait, {}, 0, 2},
                                      {Doing::compute, {Pass::forward, 0, 0}, 2, 12},
                                      {Doing::wait, {Pass::forward, 0, 0}, 4, 6},
                                      {Doing::receive, {Pass::forward, 0, 0}, 6, 7},
                                      {Doing::send, {Pass::forward, 0, 0}, 11, 14},
                                      {Doing::compute, {Pass::backward, 0, 0}, 15, 16}},
                                     {{Doing::compute, {Pass::forward, 1, 0}, 1, 20}}}};
  const auto uses = use_of(timeline);
  EXPECT_EQ(uses[0].busy, 10 - 3 + 1);
  EXPECT_EQ(uses[0].waiting, 2 + 1);
  EXPECT_EQ(uses[0].communicating, 1 + 2);
  EXPECT_EQ(uses[0].idle, 2 + 4);
  EXPECT_EQ(uses[0].bubble(), 1 - 8.0 / 20);
  EXPECT_EQ(uses[1].idle, 1);
  EXPECT_EQ(pipeline::bubble_of(timeline), 1 - (8.0 + 19) / 40);
  EXPECT_EQ(use_of(pipeline::Timeline{{{}, {}}})[1].bubble(), 0);
}

// Sums of times that no binary number is exactly.
TEST(PipelineScheduleTimelines, RoundingLeavesNothingNegative) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> length(0.1, 3);
  for (int times = 0; times < 100; ++times) {
    pipeline::Timeline timeline{{{}}};
    double begin = 0;
    for (int i = 0; i < 21; ++i) {
      const double end = begin + length(generator);
      timeline.ranks[0].push_back({i % 2 == 0 ? Doing::compute : Doing::wait, {}, begin, end});
      begin = end;
    }
    EXPECT_GE(use_of(timeline)[0].idle, 0);
  }
}

TEST(PipelineScheduleTimelines, AChromeTraceReadsBack) {
  for (const std::string& kind : pipeline::schedule_kinds()) {
    const pipeline::Timeline timeline = example(kind);
    const pipeline::Timeline read =
        pipeline::parse_chrome_trace(pipeline::to_chrome_trace(timeline));
    ASSERT_EQ(read.ranks.size(), timeline.ranks.size());
    for (size_t rank = 0; rank < read.ranks.size(); ++rank) {
      ASSERT_EQ(read.ranks[rank].size(), timeline.ranks[rank].size());
      for (size_t i = 0; i < read.ranks[rank].size(); ++i) {
        const auto& [doing, action, begin, end] = timeline.ranks[rank][i];
        EXPECT_EQ(read.ranks[rank][i].doing, doing);
        EXPECT_EQ(read.ranks[rank][i].action, action);
        EXPECT_EQ(read.ranks[rank][i].begin, begin);
        EXPECT_EQ(read.ranks[rank][i].end, end);
      }
    }
  }
}

// A step that was measured tells its lists and what its passes took.
TEST(PipelineScheduleTimelines, AMeasuredStepIsSimulatedFromItself) {
  for (const std::string& kind : pipeline::schedule_kinds()) {
    const pipeline::Schedule schedule = pipeline::make_schedule({kind, 2, 4});
    const int stages = schedule.stages();
    pipeline::Costs costs = pipeline::Costs::unit(stages);
    costs.forward[1] = 1.75;
    costs.weight[0] = 0.5;
    const pipeline::Timeline measured =
        pipeline::simulate(schedule, pipeline::Graph::chain(stages), costs);
    const pipeline::Schedule lists = pipeline::lists_of(measured);
    EXPECT_EQ(lists.actions, schedule.actions);
    EXPECT_EQ(lists.rank_of_stage, schedule.rank_of_stage);
    const pipeline::Timeline again = pipeline::simulate(lists, pipeline::Graph::chain(stages),
                                                        pipeline::costs_of(measured, lists));
    EXPECT_EQ(again.span(), measured.span()) << kind;
  }
  // Waits inside an action are none of its cost, also where they lie over each other.
  pipeline::Timeline interrupted{{{{Doing::compute, {Pass::forward, 0, 0}, 0, 10},
                                   {Doing::wait, {}, 2, 5},
                                   {Doing::receive, {}, 4, 6},
                                   {Doing::send, {}, 6, 7},
                                   {Doing::compute, {Pass::forward, 0, 1}, 10, 12}}}};
  const pipeline::Costs costs = costs_of(interrupted, pipeline::lists_of(interrupted));
  EXPECT_EQ(costs.forward[0], (6.0 + 2) / 2);
  interrupted.ranks.emplace_back();
  EXPECT_THAT(error_of([&] { pipeline::lists_of(interrupted); }),
              HasSubstr("a measured step of 1 stages on 2 ranks"));
  interrupted.ranks[1].push_back({Doing::compute, {Pass::forward, 1, 0}, 0, 1});
  EXPECT_THAT(error_of([&] { pipeline::lists_of(interrupted); }),
              HasSubstr("not one whole step was measured: schedule: 1F1 is missing"));
}

TEST(PipelineScheduleTimelines, ATraceThatIsNoneIsRefused) {
  const auto error = [](const std::string& text) {
    return error_of([&] { pipeline::parse_chrome_trace(text); });
  };
  EXPECT_THAT(error("{"), HasSubstr("is JSON, and this is not"));
  EXPECT_THAT(error("{}"), HasSubstr("this has neither"));
  EXPECT_THAT(error("3"), HasSubstr("this has neither"));
  EXPECT_THAT(error("[]"), HasSubstr("no event with args"));
  EXPECT_THAT(error(R"([{"ph": "X", "name": "other", "ts": 0, "dur": 1}])"),
              HasSubstr("no event with args"));
  const auto event = [](const std::string& args, const std::string& duration = "1") {
    return R"([{"ph": "X", "ts": 0, "dur": )" + duration + R"(, "args": )" + args + "}]";
  };
  EXPECT_THAT(error(event(R"({"rank": 0, "kind": "sideways"})")),
              HasSubstr("event 0 of the trace: its kind is \"sideways\""));
  EXPECT_THAT(error(event(R"({"rank": -1, "kind": "forward"})")), HasSubstr("its rank is -1"));
  EXPECT_THAT(error(event(R"({"rank": 0, "kind": "wait", "of": "sideways"})")),
              HasSubstr("it is of \"sideways\""));
  EXPECT_THAT(error(event(R"({"rank": 0, "kind": "forward"})", "-1")), HasSubstr("it takes -1"));
  EXPECT_THAT(error(event(R"({"rank": "first", "kind": "forward"})")),
              HasSubstr("event 0 of the trace"));
  EXPECT_THAT(error(event(R"({"rank": 0, "kind": "forward"})", "\"long\"")),
              HasSubstr("event 0 of the trace"));
}

TEST(PipelineScheduleTimelines, ARecorderNotesWhatLiesInWhat) {
  const pipeline::Action action{Pass::forward, 1, 2};
  pipeline::Recorder recorder(1);
  { const pipeline::Recorder::During before(&recorder, pipeline::Action{}); }
  recorder.start();
  {
    const pipeline::Recorder::During computes(&recorder, action);
    const pipeline::Recorder::During receives(&recorder, Doing::receive);
  }
  const auto now = pipeline::Recorder::Clock::now();
  std::thread([&] {
    recorder.add(Doing::send, action, now, now + std::chrono::microseconds(1500));
  }).join();
  const pipeline::Timeline timeline = recorder.timeline();
  ASSERT_EQ(timeline.ranks.size(), 2u);
  EXPECT_TRUE(timeline.ranks[0].empty());
  const auto& events = timeline.ranks[1];
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].doing, Doing::compute);
  EXPECT_EQ(events[0].action, action);
  EXPECT_EQ(events[1].doing, Doing::receive);
  EXPECT_GE(events[0].begin, 0);
  EXPECT_LE(events[0].begin, events[1].begin);
  EXPECT_GE(events[0].end, events[1].end);
  EXPECT_EQ(events[2].doing, Doing::send);
  EXPECT_NEAR(events[2].end - events[2].begin, 1.5, 1e-9);

  const pipeline::Timeline both =
      pipeline::joined({timeline, {{{{Doing::wait, {}, 0, 1}}, {{Doing::wait, {}, -1, 1}}}}});
  EXPECT_EQ(both.ranks[0].size(), 1u);
  ASSERT_EQ(both.ranks[1].size(), 4u);
  EXPECT_EQ(both.ranks[1][0].begin, -1);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(PipelineScheduleTimelines, APictureHasABoxForEachAction) {
  const pipeline::Timeline timeline = example("1f1b", 0);
  const std::string svg = pipeline::to_svg({{"a < b & c", timeline}, {"again", timeline}});
  EXPECT_EQ(count(svg, "<title>0F"), 2 * 4u);
  EXPECT_EQ(count(svg, "<title>1B"), 2 * 4u);
  EXPECT_EQ(count(svg, "<title>waits for what 0B3 needs</title>"), 2u);
  EXPECT_EQ(count(svg, ">rank 1</text>"), 2u);
  EXPECT_EQ(count(svg, ">20.0%</text>"), 4u);
  EXPECT_EQ(count(svg, "a &lt; b &amp; c"), 1u);
  EXPECT_EQ(count(svg, "<svg "), 1u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  // An action that waited is drawn where it computed.
  const pipeline::Timeline::Event action{Doing::compute, {Pass::backward, 0, 3}, 0, 10};
  const std::string waited =
      pipeline::to_svg({{"waited", {{{action, {Doing::wait, action.action, 2, 5}}}}}});
  EXPECT_EQ(count(waited, "<title>0B3</title>"), 2u);
  EXPECT_EQ(count(waited, ">3</text>"), 1u);
}

}  // namespace
