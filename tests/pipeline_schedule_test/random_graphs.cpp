// Random edges over stages and random reads under every kind. Either all lists run to their ends,
// or what waits for each other is named, and a graph of the same events, made here another way, has
// that circle. OSLO_RANDOM_SCHEDULES says how many graphs.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/check.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/order/playback.h"
#include "parallelizers/pipeline/schedule/order/text.h"
#include "tests/support/error_of.h"

namespace {

namespace pipeline = oslo::pipeline;
using pipeline::Action;
using pipeline::Pass;
using pipeline::Stand;
using ::testing::HasSubstr;

// An action is two events: it is computed, and the rank goes on.
struct Event {
  Action action;
  bool ended = false;
  auto operator<=>(const Event&) const = default;
};

// What must have happened before each event.
std::map<Event, std::set<Event>> events_of(const pipeline::Schedule& schedule,
                                           const pipeline::Graph& graph) {
  std::map<Event, std::set<Event>> before;
  for (const std::vector<Action>& actions : schedule.actions) {
    for (size_t i = 0; i < actions.size(); ++i) {
      before[{actions[i], true}].insert({actions[i], false});
      std::set<Event>& computed = before[{actions[i], false}];
      if (i > 0) computed.insert({actions[i - 1], true});
    }
  }
  const auto backward = [&](int stage, int micro_batch) -> Event {
    const Event whole{{Pass::backward, stage, micro_batch}};
    return before.count(whole) > 0 ? whole : Event{{Pass::backward_input, stage, micro_batch}};
  };
  for (int i = 0; i < schedule.micro_batches; ++i) {
    for (const auto& [from, to, gradient] : graph.edges) {
      before[{{Pass::forward, to, i}}].insert({{Pass::forward, from, i}});
      if (gradient) before[backward(from, i)].insert(backward(to, i));
    }
    for (const auto& [owner, reader] : graph.reads) {
      if (owner == reader) continue;
      before[{{Pass::forward, reader, i}, owner > reader}].insert({{Pass::forward, owner, i}});
    }
  }
  return before;
}

bool has_circle(const std::map<Event, std::set<Event>>& before) {
  std::map<Event, std::vector<Event>> after;
  std::map<Event, size_t> missing;
  std::vector<Event> ready;
  for (const auto& [event, needed] : before) {
    for (const Event& one : needed) after[one].push_back(event);
    missing[event] = needed.size();
    if (needed.empty()) ready.push_back(event);
  }
  size_t happened = 0;
  while (!ready.empty()) {
    const Event event = ready.back();
    ready.pop_back();
    ++happened;
    for (const Event& next : after[event]) {
      if (--missing[next] == 0) ready.push_back(next);
    }
  }
  return happened < before.size();
}

size_t place_in(const std::vector<Action>& list, const Action& action) {
  return std::find(list.begin(), list.end(), action) - list.begin();
}

// Each rank waits for an action that the next has not come to.
void expect_circle(const pipeline::Schedule& schedule,
                   const std::map<Event, std::set<Event>>& before,
                   const std::vector<Stand>& circle) {
  for (size_t i = 0; i < circle.size(); ++i) {
    const Stand& stand = circle[i];
    const Stand& next = circle[(i + 1) % circle.size()];
    const bool waits_to_begin = before.at({stand.action, false}).count({stand.needed, false}) > 0;
    const bool waits_to_end = before.at({stand.action, true}).count({stand.needed, false}) > 0;
    EXPECT_TRUE(waits_to_begin || waits_to_end) << pipeline::circle_text(circle);
    const std::vector<Action>& list = schedule.actions[next.rank];
    const size_t place = place_in(list, next.action);
    ASSERT_LT(place_in(list, stand.needed), list.size());
    EXPECT_LE(place, place_in(list, stand.needed));
    // Had it been computed there already, nobody would wait for it.
    if (next.action == stand.needed) {
      EXPECT_TRUE(next.what != Stand::For::read || next.needed.stage < next.action.stage);
    }
    EXPECT_EQ(schedule.actions[stand.rank][place_in(schedule.actions[stand.rank], stand.action)],
              stand.action);
  }
}

struct Random {
  std::mt19937 generator;
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); }

  pipeline::Schedule schedule(const std::string& kind) {
    const int ranks = number(1, 4);
    const int chunks = kind == "interleaved" || kind == "zero_bubble" ? number(2, 3) : 0;
    const int rounds = number(1, 2);
    int micro_batches = chunks > 0 ? ranks * rounds : number(1, 8);
    if (kind == "dualpipev") micro_batches = std::max(micro_batches, 2 * ranks);
    if (kind == "zero_bubble" && number(0, 1) == 0) {
      return pipeline::make_schedule({kind, ranks, micro_batches, 1});
    }
    return pipeline::make_schedule({kind, ranks, micro_batches, chunks});
  }

  // A chain, with or without some of its links, and skips of any length.
  pipeline::Graph edges(int stages) {
    pipeline::Graph graph = pipeline::Graph::chain(stages);
    if (number(0, 3) == 0) {
      std::erase_if(graph.edges, [&](const auto&) { return number(0, 3) == 0; });
    }
    for (int skips = stages > 1 ? number(0, 4) : 0; skips > 0; --skips) {
      const int to = number(1, stages - 1);
      graph.edges.push_back({number(0, to - 1), to, number(0, 2) > 0});
    }
    return graph;
  }
};

int graphs() {
  const char* const told = std::getenv("OSLO_RANDOM_SCHEDULES");
  return told == nullptr ? 10000 : std::atoi(told);
}

// Whatever stages send to higher ones.
TEST(PipelineScheduleRandomGraphs, SkipsNeverMakeACircle) {
  Random random{std::mt19937(1)};
  for (int i = 0; i < graphs(); ++i) {
    for (const std::string& kind : pipeline::schedule_kinds()) {
      const pipeline::Schedule schedule = random.schedule(kind);
      const pipeline::Graph graph = random.edges(schedule.stages());
      const pipeline::Playback playback =
          play(schedule, graph, pipeline::Costs::unit(schedule.stages()));
      ASSERT_TRUE(playback.circle.empty())
          << i << ", " << pipeline::to_text(schedule) << pipeline::circle_text(playback.circle);
      for (int rank = 0; rank < schedule.ranks; ++rank) {
        ASSERT_EQ(playback.runs[rank].size(), schedule.actions[rank].size());
      }
    }
  }
}

TEST(PipelineScheduleRandomGraphs, WithReadsTheyRunOrTheCircleIsNamed) {
  Random random{std::mt19937(2)};
  std::map<std::string, int> ran;
  std::map<std::string, int> refused;
  for (int i = 0; i < graphs(); ++i) {
    for (const std::string& kind : pipeline::schedule_kinds()) {
      const pipeline::Schedule schedule = random.schedule(kind);
      const int stages = schedule.stages();
      pipeline::Graph graph = random.edges(stages);
      for (int reads = random.number(1, 2); reads > 0; --reads) {
        if (random.number(0, 1) == 0) {
          graph.read_by_all(random.number(0, stages - 1), schedule);
        } else {
          graph.reads.push_back({random.number(0, stages - 1), random.number(0, stages - 1)});
        }
      }
      const pipeline::Playback playback = play(schedule, graph, pipeline::Costs::unit(stages));
      const auto events = events_of(schedule, graph);
      SCOPED_TRACE(pipeline::to_text(schedule) + pipeline::circle_text(playback.circle));
      ASSERT_EQ(playback.circle.empty(), !has_circle(events)) << i;
      expect_circle(schedule, events, playback.circle);
      if (::testing::Test::HasFailure()) return;
      ++(playback.circle.empty() ? ran : refused)[kind];
    }
  }
  // Both happen where a rank has several stages; elsewhere every read can wait.
  for (const char* kind : {"interleaved", "zero_bubble", "zbv", "dualpipev"}) {
    EXPECT_GT(ran[kind], 0) << kind;
    EXPECT_GT(refused[kind], 0) << kind;
  }
  for (const char* kind : {"naive", "gpipe", "1f1b"}) EXPECT_EQ(refused[kind], 0) << kind;
}

// A value that the user's forward looks at.
TEST(PipelineScheduleRandomGraphs, OneStageARankReadsWhatItLikes) {
  for (const char* kind : {"naive", "gpipe", "1f1b", "zero_bubble"}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int micro_batches = 1; micro_batches <= 13; ++micro_batches) {
        const pipeline::Schedule schedule =
            pipeline::make_schedule({kind, ranks, micro_batches, 1});
        pipeline::Graph graph = pipeline::Graph::chain(ranks);
        for (int owner = 0; owner < ranks; ++owner) graph.read_by_all(owner, schedule);
        check_runs(schedule, graph);
      }
    }
  }
}

TEST(PipelineScheduleRandomGraphs, ARefusalNamesEveryRankThatWaits) {
  const pipeline::Schedule schedule = pipeline::make_schedule({"interleaved", 4, 8, 2});
  pipeline::Graph graph = pipeline::Graph::chain(8);
  graph.reads.push_back({6, 3});
  EXPECT_THAT(
      oslo::test::error_of([&] { check_runs(schedule, graph); }),
      HasSubstr("schedule interleaved (4 ranks, 8 micro-batches, 2 stages a rank) cannot run "
                "this model: rank 2 stands in 6B0, which needs the gradient of 7B0, and rank "
                "3 comes to that only after 3F3; rank 3 stands in 3F3, whose forward reads a "
                "value of 6F3, and rank 2 comes to that only after 6B0. Take 1f1b, or do not "
                "look at that value inside forward"));
  pipeline::Graph first = pipeline::Graph::chain(8);
  first.read_by_all(0, schedule);
  check_runs(schedule, first);
  // A list of one's own that is wrong without any model.
  const pipeline::Schedule crossed = pipeline::parse_schedule(
      "mine ranks 2 micro_batches 1 chunks 2\n"
      "rank 0: 2F0 0F0 2B0 0B0\n"
      "rank 1: 1F0 3F0 3B0 1B0\n");
  EXPECT_THAT(oslo::test::error_of([&] { check_runs(crossed, pipeline::Graph::chain(4)); }),
              HasSubstr("rank 0 stands in 2F0, which needs the result of 1F0"));
}

}  // namespace
