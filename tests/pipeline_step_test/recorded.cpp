// A recorded step: what its ranks noted is what the lists say, and what was sent.
#include <gmock/gmock.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/timeline/chrome_trace.h"
#include "tests/models/gpt2.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline::Action;
using pipeline::Pass;
using pipeline::Timeline;
using pipeline_parity::config_of;
using pipeline_parity::Grid;
using pipeline_parity::Tensors;
using Doing = Timeline::Doing;

constexpr int64_t kTokens = 23;

/// Its table is the head, too: a parameter on the first and the last stage.
models::GPT2 tied_gpt2() {
  models::GPT2Options options;
  options.vocabulary = kTokens;
  options.hidden = 12;
  options.heads = 3;
  options.layers = 4;
  return models::GPT2(options);
}

std::vector<Action> computed(const std::vector<Timeline::Event>& events) {
  std::vector<Action> actions;
  for (const auto& event : events) {
    if (event.doing == Doing::compute) actions.push_back(event.action);
  }
  return actions;
}

/// By action, how often a rank did that for it.
std::map<Action, int> number_of(const std::vector<Timeline::Event>& events, Doing doing) {
  std::map<Action, int> found;
  for (const auto& event : events) found[event.action] += event.doing == doing;
  return found;
}

/// Actions one after the other; messages and waits in the action that they are for.
void expect_nested(const std::vector<Timeline::Event>& events) {
  const Timeline::Event* action = nullptr;
  for (const auto& event : events) {
    EXPECT_LE(event.begin, event.end);
    if (event.doing == Doing::compute) {
      if (action != nullptr) {
        EXPECT_GE(event.begin, action->end);
      }
      action = &event;
      continue;
    }
    ASSERT_NE(action, nullptr);
    EXPECT_EQ(event.action, action->action);
    if (event.doing == Doing::reduce) {
      EXPECT_GE(event.begin, action->end);
    } else {
      EXPECT_GE(event.begin, action->begin);
      EXPECT_LE(event.end, action->end);
    }
  }
}

/// The layers' activation crosses each boundary between ranks, and its gradient.
void expect_messages(const Timeline& timeline, const pipeline::Schedule& schedule, int rank) {
  const auto& events = timeline.ranks[rank];
  const auto elsewhere = [&](int stage) {
    return stage >= 0 && stage < schedule.stages() && schedule.rank_of_stage[stage] != rank;
  };
  const auto sends = number_of(events, Doing::send);
  const auto receives = number_of(events, Doing::receive);
  const auto waits = number_of(events, Doing::wait);
  for (const Action& action : computed(events)) {
    const bool weights = action.pass == Pass::backward_weight;
    const int to = action.pass == Pass::forward ? 1 : -1;
    EXPECT_EQ(sends.at(action), !weights && elsewhere(action.stage + to)) << to_text(action);
    EXPECT_EQ(receives.at(action), !weights && elsewhere(action.stage - to)) << to_text(action);
    EXPECT_EQ(waits.at(action), receives.at(action)) << to_text(action);
  }
}

/// Whether `pass` goes forward, the stage and the micro-batch: what one stage does by a whole
/// backward its neighbour may do by half of one.
std::tuple<bool, int, int> way_of(const Action& action) {
  return {action.pass == Pass::forward, action.stage, action.micro_batch};
}

/// Clocks of one host are one: nothing has come before it was sent.
void expect_causal(const Timeline& timeline) {
  std::map<std::tuple<bool, int, int>, double> sent;  // by the action that receives it
  for (const auto& events : timeline.ranks) {
    for (const auto& event : events) {
      if (event.doing != Doing::send) continue;
      Action to = event.action;
      to.stage += to.pass == Pass::forward ? 1 : -1;
      sent[way_of(to)] = event.begin;
    }
  }
  for (const auto& events : timeline.ranks) {
    for (const auto& event : events) {
      if (event.doing == Doing::receive) {
        EXPECT_GE(event.end, sent.at(way_of(event.action)));
      }
    }
  }
}

void expect_shares_of_one(const Timeline& timeline) {
  for (const pipeline::RankUse& use : use_of(timeline)) {
    const double span = timeline.span();
    EXPECT_NEAR((use.busy + use.waiting + use.communicating + use.idle) / span, 1, 1e-9);
    EXPECT_GT(use.busy, 0);
    EXPECT_NEAR(use.bubble(), 1 - use.busy / span, 1e-9);
  }
}

void expect_whole_trace(const std::string& text, const pipeline::Schedule& schedule) {
  std::map<std::tuple<int, int, int, std::string>, int> found;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const auto& args = event.at("args");
    ++found[{args.at("rank"), args.at("stage"), args.at("micro_batch"), args.at("kind")}];
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      const std::string kind = std::array{"forward", "backward", "backward_input",
                                          "backward_weight"}[static_cast<size_t>(action.pass)];
      EXPECT_EQ((found[{rank, action.stage, action.micro_batch, kind}]), 1) << to_text(action);
    }
  }
  EXPECT_EQ(pipeline::MeasuredStep(pipeline::parse_chrome_trace(text)).schedule().actions,
            schedule.actions);
}

/// Whether the kind's formula holds for some costs of the passes only, and so may not be shown.
bool depends_on_costs(const std::string& kind) {
  return kind == "zbv" || kind == "dualpipev";
}

class RecordedSteps : public testing::TestWithParam<std::tuple<Grid, const char*, int>> {};

TEST_P(RecordedSteps, AreTheListsActionForAction) {
  const auto& [grid, kind, micro_batches] = GetParam();
  run_as_threads(grid.size(), [&, grid = grid, kind = kind, m = micro_batches](World world) {
    at::set_num_threads(1);
    auto model = pipeline_parity::make_seeded(7, tied_gpt2);
    const auto batch = pipeline_parity::make_seeded(8, [&] {
      return Tensors{torch::randint(kTokens, {8, 7}), torch::randint(kTokens, {8, 7})};
    });
    const auto loss = [&](const Tensors& micro) {
      return torch::nn::functional::cross_entropy(model->forward(micro[0]).view({-1, kTokens}),
                                                  micro[1].view({-1}));
    };
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { loss(batch); };
    ParallelModel parallel = initialize(model, Config::parse(config_of(grid, kind)), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(m));
    const auto step = [&](const StepOptions& options) {
      model->zero_grad();
      return schedule.forward_backward_step(batch, loss, options);
    };
    const auto gathers = [&] {
      const auto& group = parallel.mpu().pipeline_group();
      return grid.pipeline > 1 ? group->ledger().total("all_gather").calls : 0;
    };
    // Where a rank has several stages each step compares which ways the forwards took.
    const int ways = grid.pipeline > 1 && pipeline::default_chunks(kind) > 1 ? 1 : 0;
    const StepResult plain = step({});
    EXPECT_FALSE(plain.measured);
    EXPECT_EQ(gathers(), ways);
    const StepResult recorded = step(StepOptions().record(true));
    EXPECT_EQ(gathers(), grid.pipeline > 1 ? 4 + 2 * ways : 0);
    EXPECT_TRUE(torch::equal(recorded.loss, plain.loss));
    ASSERT_TRUE(recorded.measured);
    const Timeline& timeline = recorded.measured->timeline();
    ASSERT_EQ(timeline.ranks.size(), static_cast<size_t>(grid.pipeline));
    for (int rank = 0; rank < grid.pipeline; ++rank) {
      const auto& events = timeline.ranks[rank];
      EXPECT_EQ(computed(events), schedule.schedule().actions[rank]);
      expect_nested(events);
      expect_messages(timeline, schedule.schedule(), rank);
      int reductions = 0;
      for (const auto& event : events) reductions += event.doing == Doing::reduce;
      const auto& ranks = schedule.schedule().rank_of_stage;  // in a V one has both ends
      const bool tied =
          ranks.front() != ranks.back() && (rank == ranks.front() || rank == ranks.back());
      EXPECT_EQ(reductions, (grid.data > 1) + tied);
    }
    expect_causal(timeline);
    expect_shares_of_one(timeline);
    EXPECT_EQ(recorded.measured->schedule().kind, kind);
    EXPECT_EQ(recorded.measured->schedule().actions, schedule.schedule().actions);
    expect_whole_trace(recorded.measured->chrome_trace(), schedule.schedule());
    EXPECT_THAT(recorded.measured->report(), testing::HasSubstr(kind + std::string(": ")));
    if (!depends_on_costs(kind)) {
      EXPECT_THAT(recorded.measured->report(), testing::HasSubstr("formula   "));
    }
    EXPECT_THAT(recorded.measured->svg(), testing::HasSubstr(kind + std::string(": ")));
    EXPECT_THAT(recorded.measured->svg(), testing::HasSubstr(">simulated</text>"));

    const StepResult evaluated = step(StepOptions().forward_only(true).record(true));
    ASSERT_TRUE(evaluated.measured);
    const auto forwards = pipeline::forward_only(schedule.schedule());
    EXPECT_EQ(evaluated.measured->schedule().actions, forwards.actions);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, RecordedSteps,
    testing::Values(std::tuple{Grid{1, 1, 1}, "naive", 3}, std::tuple{Grid{1, 1, 2}, "naive", 3},
                    std::tuple{Grid{1, 1, 2}, "gpipe", 3}, std::tuple{Grid{1, 1, 2}, "1f1b", 4},
                    std::tuple{Grid{1, 1, 4}, "1f1b", 6}, std::tuple{Grid{2, 2, 2}, "1f1b", 3},
                    std::tuple{Grid{1, 1, 2}, "interleaved", 4},
                    std::tuple{Grid{1, 1, 4}, "zero_bubble", 6},
                    std::tuple{Grid{2, 1, 2}, "zbv", 3}, std::tuple{Grid{1, 1, 2}, "dualpipev", 4}),
    [](const auto& info) {
      return std::get<0>(info.param).name() + "_of_" + std::get<1>(info.param) + "_m" +
             std::to_string(std::get<2>(info.param));
    });

/// The form with forward and criterion records as well.
TEST(PipelineSchedule, OutputsAndARecordTogether) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    auto model = pipeline_parity::make_seeded(7, tied_gpt2);
    const Tensors batch{torch::arange(14).view({2, 7}), torch::arange(14).view({2, 7})};
    InitializeOptions how;
    how.world = world;
    ParallelModel parallel = initialize(model, Config::parse(config_of({1, 1, 2})), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
    const auto forward = [&](const Tensors& micro) { return model->forward(micro[0]); };
    const auto criterion = [](const torch::Tensor& output, const Tensors& micro) {
      return torch::nn::functional::cross_entropy(output.view({-1, kTokens}), micro[1].view({-1}));
    };
    const StepResult step = schedule.forward_backward_step(
        batch, forward, criterion, StepOptions().record(true).return_outputs(true));
    ASSERT_TRUE(step.measured);
    EXPECT_EQ(step.measured->schedule().actions, schedule.schedule().actions);
    EXPECT_EQ(step.outputs.defined(), world.rank() == 1);
  });
}

}  // namespace
}  // namespace oslo::test
