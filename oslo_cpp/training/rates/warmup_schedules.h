#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <vector>

#include "oslo_cpp/training/rates/rate_schedule.h"

namespace oslo {

/// What the schedules below may be told beside their numbers of steps. Both are parts of the
/// optimizer's own rate.
struct WarmupOptions {
  /// Where warming up begins: PyTorch's LinearLR has `start_factor`, LiBai `warmup_factor`.
  TORCH_ARG(double, start_factor) = 0.0;
  /// What is left at the end, and afterwards. PyTorch has it as a rate: `eta_min`.
  TORCH_ARG(double, end_factor) = 0.0;
};

/// Schedules that warm up and decay, as PyTorch's, LiBai's and Colossal-AI's of these names do. In
/// each the rate grows on a line from `start_factor` to the optimizer's own over `warmup_steps`,
/// which step `warmup_steps` has in full (0: from the first on), and decays until `total_steps`,
/// both counted from the beginning. With p the part of the decay that has passed, and e the
/// `end_factor`, the own rate is multiplied by
///
///   WarmupLinearLR      e + (1 - e) (1 - p)
///   WarmupCosineLR      e + (1 - e) (1 + cos(pi p)) / 2     Loshchilov, Hutter 2016 (1608.03983)
///   WarmupPolynomialLR  e + (1 - e) (1 - p)^power
///   WarmupMultiStepLR   gamma^n, behind n of the milestones; it has no end
///
///     oslo::WarmupCosineLR schedule(optimizer, /*total_steps=*/1000, /*warmup_steps=*/100);
///     ...
///     if (engine.step()) schedule.step();
///
/// They throw where warming up is to take longer than everything, for numbers below 0, and for
/// milestones that do not grow. What else they do is told at RateSchedule: when to step, saving and
/// resuming.
class WarmupLinearLR : public RateSchedule {
 public:
  WarmupLinearLR(torch::optim::Optimizer& optimizer, int64_t total_steps, int64_t warmup_steps = 0,
                 const WarmupOptions& options = {});
};

class WarmupCosineLR : public RateSchedule {
 public:
  WarmupCosineLR(torch::optim::Optimizer& optimizer, int64_t total_steps, int64_t warmup_steps = 0,
                 const WarmupOptions& options = {});
};

class WarmupPolynomialLR : public RateSchedule {
 public:
  WarmupPolynomialLR(torch::optim::Optimizer& optimizer, int64_t total_steps,
                     int64_t warmup_steps = 0, double power = 1.0,
                     const WarmupOptions& options = {});
};

class WarmupMultiStepLR : public RateSchedule {
 public:
  /// `milestones`: steps, counted from the beginning, from which on the rate is smaller.
  WarmupMultiStepLR(torch::optim::Optimizer& optimizer, std::vector<int64_t> milestones,
                    double gamma = 0.1, int64_t warmup_steps = 0, double start_factor = 0.0);
};

}  // namespace oslo
