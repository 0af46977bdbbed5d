#include "oslo_cpp/training/rates/warmup_schedules.h"

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// Of the passed part of a decay, from 0 to 1.
using Decay = std::function<double(double passed)>;

void check_factor(const std::string& name, const char* what, double value) {
  OSLO_CHECK(std::isfinite(value) && value >= 0, name, ": ", what, " ", value,
             "; it is a part of the optimizer's rate, from 0");
}

void check_warmup(const std::string& name, int64_t steps, double start_factor) {
  OSLO_CHECK(steps >= 0, name, ": warmup_steps ", steps, "; set it to 0 to begin in full");
  check_factor(name, "start_factor", start_factor);
}

double warming(int64_t step, int64_t steps, double start) {
  return start + (1 - start) * static_cast<double>(step) / static_cast<double>(steps);
}

RateSchedule::Factor decaying(const std::string& name, int64_t total, int64_t warmup,
                              const WarmupOptions& options, Decay decay) {
  check_warmup(name, warmup, options.start_factor());
  check_factor(name, "end_factor", options.end_factor());
  OSLO_CHECK(total >= 1 && warmup <= total, name, ": total_steps ", total, ", warmup_steps ",
             warmup, "; of all steps, at least one, some are for warming up");
  return [=, start = options.start_factor(), end = options.end_factor()](int64_t step) {
    if (step < warmup) return warming(step, warmup, start);
    if (step >= total) return end;
    const double passed = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    return end + (1 - end) * decay(passed);
  };
}

RateSchedule::Factor by_milestones(const std::string& name, std::vector<int64_t> milestones,
                                   double gamma, int64_t warmup, double start) {
  check_warmup(name, warmup, start);
  check_factor(name, "gamma", gamma);
  OSLO_CHECK(std::is_sorted(milestones.begin(), milestones.end()), name, ": the milestones are ",
             c10::IntArrayRef(milestones), "; they are steps in a growing order");
  return [=](int64_t step) {
    if (step < warmup) return warming(step, warmup, start);
    const auto behind = std::upper_bound(milestones.begin(), milestones.end(), step);
    return std::pow(gamma, static_cast<double>(behind - milestones.begin()));
  };
}

double line(double passed) {
  return 1 - passed;
}

double half_cosine(double passed) {
  return (1 + std::cos(std::numbers::pi * passed)) / 2;
}

Decay power_of(const std::string& name, double power) {
  OSLO_CHECK(std::isfinite(power) && power > 0, name, ": power ", power, "; it is above 0");
  return [power](double passed) { return std::pow(1 - passed, power); };
}

constexpr const char* kLinear = "WarmupLinearLR";
constexpr const char* kCosine = "WarmupCosineLR";
constexpr const char* kPolynomial = "WarmupPolynomialLR";
constexpr const char* kMultiStep = "WarmupMultiStepLR";

}  // namespace

WarmupLinearLR::WarmupLinearLR(torch::optim::Optimizer& optimizer, int64_t total_steps,
                               int64_t warmup_steps, const WarmupOptions& options)
    : RateSchedule(optimizer, decaying(kLinear, total_steps, warmup_steps, options, line),
                   kLinear) {}

WarmupCosineLR::WarmupCosineLR(torch::optim::Optimizer& optimizer, int64_t total_steps,
                               int64_t warmup_steps, const WarmupOptions& options)
    : RateSchedule(optimizer, decaying(kCosine, total_steps, warmup_steps, options, half_cosine),
                   kCosine) {}

WarmupPolynomialLR::WarmupPolynomialLR(torch::optim::Optimizer& optimizer, int64_t total_steps,
                                       int64_t warmup_steps, double power,
                                       const WarmupOptions& options)
    : RateSchedule(
          optimizer,
          decaying(kPolynomial, total_steps, warmup_steps, options, power_of(kPolynomial, power)),
          kPolynomial) {}

WarmupMultiStepLR::WarmupMultiStepLR(torch::optim::Optimizer& optimizer,
                                     std::vector<int64_t> milestones, double gamma,
                                     int64_t warmup_steps, double start_factor)
    : RateSchedule(
          optimizer,
          by_milestones(kMultiStep, std::move(milestones), gamma, warmup_steps, start_factor),
          kMultiStep) {}

}  // namespace oslo
