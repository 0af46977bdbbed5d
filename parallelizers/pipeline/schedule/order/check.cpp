#include "parallelizers/pipeline/schedule/order/check.h"

#include <algorithm>
#include <array>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/playback.h"

namespace oslo::pipeline {
namespace {

// Which passes of a stage have run for a micro-batch, by Pass.
using Ran = std::array<bool, 4>;

void check_action(const Action& action, Ran& ran) {
  const auto has_run = [&](Pass pass) { return ran[static_cast<size_t>(pass)]; };
  OSLO_CHECK(!has_run(action.pass), "schedule: ", to_text(action), " stands twice");
  const bool split = has_run(Pass::backward_input) || has_run(Pass::backward_weight);
  const bool backward = has_run(Pass::backward);
  if (action.pass != Pass::forward) {
    OSLO_CHECK(has_run(Pass::forward), "schedule: ", to_text(action), " stands before its forward");
    OSLO_CHECK(action.pass == Pass::backward ? !split : !backward, "schedule: ", to_text(action),
               " stands beside a backward of the other form: B, or I and W");
  }
  OSLO_CHECK(action.pass != Pass::backward_weight || has_run(Pass::backward_input),
             "schedule: ", to_text(action), " stands before its I");
  ran[static_cast<size_t>(action.pass)] = true;
}

void check_complete(const Schedule& schedule, const std::vector<std::vector<Ran>>& ran) {
  bool any_backward = false;
  for (const auto& of_stage : ran) {
    for (const Ran& passes : of_stage) any_backward |= passes[1] || passes[2];
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
      const Ran& passes = ran[stage][micro_batch];
      const auto check = [&](bool there, Pass missing) {
        OSLO_CHECK(there, "schedule: ", to_text(Action{missing, stage, micro_batch}),
                   " is missing");
      };
      check(passes[0], Pass::forward);
      check(!any_backward || passes[1] || passes[2], Pass::backward);
      check(!passes[2] || passes[3], Pass::backward_weight);
    }
  }
}

}  // namespace

void check_lists(const Schedule& schedule) {
  OSLO_CHECK(schedule.ranks >= 1 && schedule.chunks >= 1 && schedule.micro_batches >= 1 &&
                 static_cast<int>(schedule.actions.size()) == schedule.ranks &&
                 schedule.stages() == schedule.ranks * schedule.chunks,
             "schedule: ", schedule.ranks, " ranks of ", schedule.chunks, " stages and ",
             schedule.micro_batches, " micro-batches, but ", schedule.actions.size(), " lists and ",
             schedule.stages(), " stages");
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const size_t stages = schedule.stages_of(rank).size();
    OSLO_CHECK(static_cast<int>(stages) == schedule.chunks, "schedule: rank ", rank, " has ",
               stages, " stages, not ", schedule.chunks);
  }
  std::vector<std::vector<Ran>> ran(schedule.stages(),
                                    std::vector<Ran>(schedule.micro_batches, Ran{}));
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      OSLO_CHECK(action.stage >= 0 && action.stage < schedule.stages() &&
                     schedule.rank_of_stage[action.stage] == rank,
                 "schedule: ", to_text(action), " stands on rank ", rank,
                 ", which does not have that stage");
      OSLO_CHECK(action.micro_batch >= 0 && action.micro_batch < schedule.micro_batches,
                 "schedule: ", to_text(action), ": there are ", schedule.micro_batches,
                 " micro-batches, from 0");
      check_action(action, ran[action.stage][action.micro_batch]);
    }
  }
  check_complete(schedule, ran);
}

void check_runs(const Schedule& schedule, const Graph& graph) {
  check_lists(schedule);
  const std::vector<Stand> circle = play(schedule, graph, Costs::unit(schedule.stages())).circle;
  if (circle.empty()) return;
  const bool reads = std::any_of(circle.begin(), circle.end(),
                                 [](const Stand& stand) { return stand.what == Stand::For::read; });
  fail("schedule ", schedule.kind, " (", schedule.ranks, " ranks, ", schedule.micro_batches,
       " micro-batches, ", schedule.chunks,
       " stages a rank) cannot run this model: ", circle_text(circle),
       reads ? ". Take 1f1b, or do not look at that value inside forward" : "");
}

}  // namespace oslo::pipeline
