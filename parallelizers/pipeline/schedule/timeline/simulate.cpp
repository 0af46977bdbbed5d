#include "parallelizers/pipeline/schedule/timeline/simulate.h"

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/check.h"

namespace oslo::pipeline {
namespace {

using Doing = Timeline::Doing;

// What fills the time from `begin` to `end`: nothing, and then a message that is under way.
void add_gap(std::vector<Timeline::Event>& events, const Action& action, double begin, double end,
             double communicating) {
  if (end - communicating > begin) {
    events.push_back({Doing::wait, action, begin, end - communicating});
  }
  if (communicating > 0) events.push_back({Doing::receive, action, end - communicating, end});
}

}  // namespace

Timeline simulate(const Schedule& schedule, const Graph& graph, const Costs& costs) {
  check_runs(schedule, graph);
  const size_t stages = schedule.stages();
  OSLO_CHECK(costs.forward.size() == stages && costs.input.size() == stages &&
                 costs.weight.size() == stages,
             "costs of ", costs.forward.size(), " forwards, ", costs.input.size(), " inputs and ",
             costs.weight.size(), " weights for ", stages, " stages");
  Timeline timeline;
  for (const std::vector<Run>& runs : play(schedule, graph, costs).runs) {
    std::vector<Timeline::Event>& events = timeline.ranks.emplace_back();
    for (size_t i = 0; i < runs.size(); ++i) {
      const Run& run = runs[i];
      if (i > 0) add_gap(events, run.action, runs[i - 1].end, run.begin, run.arriving);
      events.push_back({Doing::compute, run.action, run.begin, run.computed});
      add_gap(events, run.action, run.computed, run.end, run.read_arriving);
    }
  }
  return timeline;
}

std::vector<Peak> peaks_of(const Schedule& schedule) {
  std::vector<Peak> peaks;
  for (const std::vector<Action>& actions : schedule.actions) {
    Peak peak;
    Peak now;
    for (const Action& action : actions) {
      if (action.pass == Pass::forward) {
        ++now.until_weight;
        ++now.until_input;
      }
      if (action.pass == Pass::backward || action.pass == Pass::backward_input) --now.until_input;
      if (action.pass == Pass::backward || action.pass == Pass::backward_weight) {
        --now.until_weight;
      }
      peak.until_weight = std::max(peak.until_weight, now.until_weight);
      peak.until_input = std::max(peak.until_input, now.until_input);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace oslo::pipeline
