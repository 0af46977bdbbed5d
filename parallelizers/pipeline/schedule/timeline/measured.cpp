#include "parallelizers/pipeline/schedule/timeline/measured.h"

#include <algorithm>
#include <array>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/check.h"

namespace oslo::pipeline {
namespace {

using Doing = Timeline::Doing;

double computed_in(const Timeline::Event& action, const std::vector<Timeline::Event>& events) {
  double taken = 0;
  for (const auto& [begin, end] : computing_of(action, events)) taken += end - begin;
  return taken;
}

}  // namespace

Schedule lists_of(const Timeline& measured) {
  Schedule schedule;
  schedule.kind = "measured";
  schedule.ranks = static_cast<int>(measured.ranks.size());
  int stages = 0;
  for (const auto& events : measured.ranks) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (const Timeline::Event& event : events) {
      if (event.doing != Doing::compute) continue;
      actions.push_back(event.action);
      stages = std::max(stages, event.action.stage + 1);
      schedule.micro_batches = std::max(schedule.micro_batches, event.action.micro_batch + 1);
    }
  }
  OSLO_CHECK(schedule.ranks > 0 && stages % schedule.ranks == 0, "a measured step of ", stages,
             " stages on ", schedule.ranks, " ranks: every rank has the same number of them");
  schedule.chunks = stages / schedule.ranks;
  schedule.rank_of_stage.assign(stages, -1);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      OSLO_CHECK(action.stage >= 0 && action.micro_batch >= 0, "a measured step: stage ",
                 action.stage, ", micro-batch ", action.micro_batch);
      schedule.rank_of_stage[action.stage] = rank;
    }
  }
  try {
    check_lists(schedule);
  } catch (const Error& error) {
    fail("not one whole step was measured: ", error.what());
  }
  return schedule;
}

Costs costs_of(const Timeline& measured, const Schedule& schedule) {
  struct Mean {
    double sum = 0;
    int count = 0;
    double value() const { return count == 0 ? 0 : sum / count; }
  };
  std::vector<std::array<Mean, 4>> means(schedule.stages());  // by stage and Pass
  for (const auto& events : measured.ranks) {
    for (const Timeline::Event& event : events) {
      if (event.doing != Doing::compute) continue;
      Mean& mean = means[event.action.stage][static_cast<size_t>(event.action.pass)];
      mean.sum += computed_in(event, events);
      ++mean.count;
    }
  }
  Costs costs;
  for (const auto& [forward, backward, input, weight] : means) {
    costs.forward.push_back(forward.value());
    // Where all backwards ran whole, their cost need not be told apart.
    costs.input.push_back(input.count > 0 ? input.value() : backward.value());
    costs.weight.push_back(weight.value());
  }
  return costs;
}

}  // namespace oslo::pipeline
