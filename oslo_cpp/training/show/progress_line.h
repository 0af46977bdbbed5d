#pragma once

#include <cstdint>
#include <string>

namespace oslo {

/// How far a training is.
struct TrainingProgress {
  int64_t epoch = 0, epochs = 1;    ///< from 0
  int64_t batch = 0, batches = -1;  ///< that are through; of an epoch, -1: unknown
  int64_t steps = 0, max_steps = 0;
  double loss = 0;
  double labels_per_second = 0;
  double seconds_a_batch = 0;
  int64_t memory = 0;  ///< bytes; 0: unknown
};

/// The share of all epochs that is through, or of the steps; negative: unknown.
double share_of(const TrainingProgress& progress);

/// In words, with a bar in front or without:
///
///   [############............]  51 %  epoch 2 of 3  step 240  loss 1.234  12300 labels/s  1.2 GB
///   3 s left
std::string progress_line(const TrainingProgress& progress, bool bar);

}  // namespace oslo
