#pragma once

#include <vector>

#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// Sizes that have been checked; `rank` is the one whose list is asked for.
struct PatternSizes {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 1;
  int rank = 0;
};

/// What the patterns of forwards and backwards in turn differ by.
struct Alternation {
  int warm_up = 0;      ///< forwards before the first backward
  bool split = false;   ///< backwards run as input and weight
  int weights_lag = 0;  ///< with `split`: how many weight parts stay behind
};

/// naive, gpipe, 1f1b, interleaved and zero_bubble: forwards alone, then a forward and a backward
/// in turn, then backwards alone. Stage s lies on rank s mod ranks.
std::vector<Action> alternating(const PatternSizes& sizes, const Alternation& how);

/// ZB-V over V-shaped stages: rank r has stages r and 2 * ranks - 1 - r.
std::vector<Action> zero_bubble_v(const PatternSizes& sizes);

/// DualPipe over the same stages, both directions on one rank. Needs 2 * ranks micro-batches.
std::vector<Action> dual_pipe_v(const PatternSizes& sizes);

/// How many micro-batches of a stage run before the rank turns to its next stage.
inline int micro_batches_a_round(int ranks, int micro_batches) {
  const int rounds = micro_batches / ranks;
  return rounds < 2 ? micro_batches : micro_batches / rounds;
}

}  // namespace oslo::pipeline
