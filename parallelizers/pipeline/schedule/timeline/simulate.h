#pragma once

#include <vector>

#include "parallelizers/pipeline/schedule/order/graph.h"
#include "parallelizers/pipeline/schedule/order/playback.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"
#include "parallelizers/pipeline/schedule/timeline/timeline.h"

namespace oslo::pipeline {

/// The step as it would run at these costs: its span is the makespan. Throws as `check_runs` does
/// where it cannot run.
Timeline simulate(const Schedule& schedule, const Graph& graph, const Costs& costs);

/// The most forward passes of a rank, over all of its stages, whose activations it keeps at a time.
struct Peak {
  /// Until the weights' part of the backward has run: what a linear layer's input is kept for.
  int until_weight = 0;
  /// Until the input's part has run: what everything else is kept for.
  int until_input = 0;
  bool operator==(const Peak&) const = default;
};

/// By rank. Follows from the lists alone, whatever passes cost.
std::vector<Peak> peaks_of(const Schedule& schedule);

}  // namespace oslo::pipeline
