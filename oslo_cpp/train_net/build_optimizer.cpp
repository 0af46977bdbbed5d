#include "oslo_cpp/train_net/build_optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <set>
#include <tuple>
#include <vector>

#include "mpu/base/error.h"
#include "oslo_cpp/train_net/batch_sizes.h"
#include "oslo_cpp/training/rates/warmup_schedules.h"
#include "oslo_cpp/zero/zero_optimizer.h"

namespace oslo {
namespace {

template <typename Given>
Given adam(const OptimizerValues& values) {
  return Given(values.lr)
      .betas(std::make_tuple(values.betas[0], values.betas[1]))
      .eps(values.eps)
      .weight_decay(values.weight_decay);
}

/// Each once: LibTorch's list has one of a module that several modules share as often as these, and
/// an optimizer would step as often.
std::vector<at::Tensor> parameters_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& each : model.parameters()) {
    if (seen.insert(each.unsafeGetTensorImpl()).second) parameters.push_back(each);
  }
  return parameters;
}

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> made(const ParallelModel& parallel,
                                              const Options& options) {
  const auto parameters = parameters_of(*parallel.module());
  if (parallel.config().values().zero_optimization) {
    return std::make_unique<ZeroOptimizer<Optimizer>>(parallel, parameters, options);
  }
  return std::make_unique<Optimizer>(parameters, options);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerValues& values,
                                                         const ParallelModel& parallel) {
  using namespace torch::optim;
  if (values.name == "SGD") {
    return made<SGD>(
        parallel,
        SGDOptions(values.lr).momentum(values.momentum).weight_decay(values.weight_decay));
  }
  if (values.name == "Adam") return made<Adam>(parallel, adam<AdamOptions>(values));
  return made<AdamW>(parallel, adam<AdamWOptions>(values));
}

std::unique_ptr<RateSchedule> build_schedule(const TrainValues& values,
                                             torch::optim::Optimizer& optimizer,
                                             int64_t iterations) {
  if (!values.scheduler) {
    return std::make_unique<RateSchedule>(
        optimizer, [](int64_t) { return 1.0; }, "constant");
  }
  const ScheduleValues& schedule = *values.scheduler;
  const int64_t warmup = warmup_iterations(values, iterations);
  OSLO_CHECK_AS(config, warmup <= iterations, "'train.scheduler.warmup_iter' ", warmup,
                " of 'train.train_iter' ", iterations,
                " iterations: let fewer warm up, or train longer");
  const auto options =
      WarmupOptions().start_factor(schedule.warmup_factor).end_factor(schedule.alpha);
  if (schedule.name == "WarmupPolynomialLR") {
    return std::make_unique<WarmupPolynomialLR>(optimizer, iterations, warmup, schedule.power,
                                                options);
  }
  if (schedule.name == "WarmupLinearLR") {
    return std::make_unique<WarmupLinearLR>(optimizer, iterations, warmup, options);
  }
  if (schedule.name == "WarmupMultiStepLR") {
    return std::make_unique<WarmupMultiStepLR>(optimizer, schedule.milestones, schedule.gamma,
                                               warmup, schedule.warmup_factor);
  }
  return std::make_unique<WarmupCosineLR>(optimizer, iterations, warmup, options);
}

}  // namespace oslo
