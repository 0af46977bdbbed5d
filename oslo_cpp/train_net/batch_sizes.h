#pragma once

#include <cstdint>

#include "oslo_cpp/train_net/train_values.h"

namespace oslo {

/// The rows of a step: `global = micro * accumulation * data ranks`.
struct BatchSizes {
  int64_t micro = 0;     ///< of a micro-batch on a data rank
  int64_t global = 0;    ///< of all micro-batches and data ranks
  int accumulation = 1;  ///< micro-batches of a step
};

/// LiBai's arithmetic: of `train_micro_batch_size`, `global_batch_size` and
/// `num_accumulation_steps` what is not given follows from the others; the last is 1 where it could
/// be anything. Throws `ConfigError` where nothing says how many rows there are, and where they do
/// not multiply.
BatchSizes batch_sizes(const TrainValues& values, int data_ranks);

/// How many iterations there are: `train_iter`, or those of `train_epoch` epochs where these are
/// more, as in LiBai. An epoch has whole batches.
int64_t iterations_of(const TrainValues& values, int64_t samples, const BatchSizes& sizes);

/// For how many of them the rate warms up.
int64_t warmup_iterations(const TrainValues& values, int64_t iterations);

}  // namespace oslo
