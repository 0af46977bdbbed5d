#pragma once

#include <optional>
#include <string>

#include "parallelizers/pipeline/schedule/order/kinds.h"

namespace oslo::pipeline {

/// The bubble that a kind's paper, or counting along its longest chain, gives for equal stages and
/// no hops. What a simulation is compared with.
struct BubbleFormula {
  std::string text;     ///< in p ranks, m micro-batches, v chunks and the costs F, I, W of a stage
  double makespan = 0;  ///< in the unit of the costs
  double bubble = 0;    ///< 1 - busy / makespan
};

/// For stages that cost `forward`, `input` and `weight` each. None where no closed form holds:
/// interleaved and zero_bubble of 2 chunks need a multiple of p micro-batches, zero_bubble p of
/// them, zbv 2p - 1 and equal costs, dualpipev I <= F <= I + W.
std::optional<BubbleFormula> bubble_formula(const ScheduleOptions& options, double forward,
                                            double input, double weight);

}  // namespace oslo::pipeline
