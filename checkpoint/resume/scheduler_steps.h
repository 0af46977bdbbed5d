#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

namespace oslo {

/// How often a learning-rate scheduler has stepped: with the groups' learning rates all that
/// LibTorch's `StepLR` resumes from. The base class keeps it for classes derived from it.
class SchedulerSteps : private torch::optim::LRScheduler {
 public:
  static unsigned& of(torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&SchedulerSteps::step_count_);
  }
  static unsigned of(const torch::optim::LRScheduler& scheduler) {
    return scheduler.*(&SchedulerSteps::step_count_);
  }
};

}  // namespace oslo
