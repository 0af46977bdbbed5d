#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace oslo {

/// A learning rate that follows from the number of steps alone: that of each parameter group, as
/// it is when the schedule is made, times a factor. PyTorch's LambdaLR; the schedules of
/// warmup_schedules.h are of this class.
///
///     oslo::RateSchedule schedule(optimizer, [](int64_t step) { return std::pow(0.95, step); });
///     ...
///     optimizer.step();
///     schedule.step();
///
/// The first optimizer step has factor(0), which is set when the schedule is made; that behind the
/// k-th `step` has factor(k). (LibTorch's own StepLR counts one less.) With an engine:
/// `if (engine.step()) schedule.step();`.
///
/// A checkpoint resumes it by `SaveOptions().scheduler(&schedule)` beside the optimizer: make it,
/// of the optimizer's first rates, before the load. `state_dict` keeps those rates, too.
///
/// Makes no communication: ranks that step alike have the same rates. Costs a call of `factor` a
/// step. Not for several threads at a time. The optimizer must outlive it.
class RateSchedule : public torch::optim::LRScheduler {
 public:
  using Factor = std::function<double(int64_t step)>;

  /// `name`: for its state, which another kind of schedule refuses.
  RateSchedule(torch::optim::Optimizer& optimizer, Factor factor,
               std::string name = "RateSchedule");

  /// How often it has stepped.
  int64_t steps() const { return step_count_; }
  /// The rates of the groups now.
  std::vector<double> get_last_lr() const;

  /// {"schedule": its name, "steps": n, "base_lrs": [...]}; for `SaveOptions().extra`.
  nlohmann::json state_dict() const;
  /// Goes on from there with the next step; the rates until then come with the optimizer's own
  /// state, as in PyTorch. Throws for the state of another kind of schedule, and of another number
  /// of groups; nothing has changed then.
  void load_state_dict(const nlohmann::json& state);

 protected:
  std::vector<double> get_lrs() override;

 private:
  std::vector<double> rates_at(int64_t step) const;

  torch::optim::Optimizer& groups_of_;
  Factor factor_;
  std::string name_;
  std::vector<double> base_lrs_;
};

}  // namespace oslo
