#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>

#include "oslo_cpp/model/parallel_model.h"
#include "oslo_cpp/train_net/train_values.h"
#include "oslo_cpp/training/rates/rate_schedule.h"

namespace oslo {

/// LibTorch's optimizer of the config's "optim", over all parameters of the model, each once; with
/// its states shared out over data replicas where the config has `zero_optimization`.
std::unique_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerValues& values,
                                                         const ParallelModel& parallel);

/// The schedule of "train.scheduler" over so many iterations; where there is none the rate stays.
/// Throws `ConfigError` where warming up takes longer than everything.
std::unique_ptr<RateSchedule> build_schedule(const TrainValues& values,
                                             torch::optim::Optimizer& optimizer,
                                             int64_t iterations);

}  // namespace oslo
