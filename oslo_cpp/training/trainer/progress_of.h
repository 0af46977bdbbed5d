#pragma once

#include <cstdint>

#include "oslo_cpp/training/show/progress_line.h"
#include "oslo_cpp/training/trainer/training.h"

namespace oslo {

/// What a training has done since its speed is measured.
struct TrainingPace {
  double seconds = 0;
  int64_t batches = 0;
  int64_t labels = 0;  ///< of all data ranks
};

/// How far `training` is, how fast it was in `pace`, and the most memory that it took.
TrainingProgress progress_of(const Training& training, const TrainingPace& pace, double loss);

}  // namespace oslo
