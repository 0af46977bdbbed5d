#include "oslo_cpp/training/rates/rate_schedule.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/training/rates/group_rates.h"

namespace oslo {
namespace {

bool is_count(const nlohmann::json& value) {
  return value.is_number_integer() && value.get<int64_t>() >= 0 &&
         value.get<int64_t>() <= int64_t{UINT32_MAX};
}

}  // namespace

RateSchedule::RateSchedule(torch::optim::Optimizer& optimizer, Factor factor, std::string name)
    : LRScheduler(optimizer),
      groups_of_(optimizer),
      factor_(std::move(factor)),
      name_(std::move(name)),
      base_lrs_(group_rates(optimizer)) {
  OSLO_CHECK(factor_ != nullptr, name_, ": the factor is an empty function");
  set_group_rates(groups_of_, rates_at(0));
}

std::vector<double> RateSchedule::get_last_lr() const {
  return group_rates(groups_of_);
}

std::vector<double> RateSchedule::rates_at(int64_t step) const {
  const double factor = factor_(step);
  std::vector<double> rates;
  for (const double base : base_lrs_) rates.push_back(base * factor);
  return rates;
}

/// The base class counts behind this.
std::vector<double> RateSchedule::get_lrs() {
  const size_t groups = groups_of_.param_groups().size();
  OSLO_CHECK(groups == base_lrs_.size(), name_, ": the optimizer has ", groups,
             " parameter groups, and had ", base_lrs_.size(),
             " when the schedule was made; add groups before that");
  return rates_at(int64_t{step_count_} + 1);
}

nlohmann::json RateSchedule::state_dict() const {
  return {{"schedule", name_}, {"steps", steps()}, {"base_lrs", base_lrs_}};
}

void RateSchedule::load_state_dict(const nlohmann::json& state) {
  OSLO_CHECK(state.is_object() && state.contains("schedule") && state.contains("steps") &&
                 is_count(state["steps"]) && state.contains("base_lrs") &&
                 state["base_lrs"].is_array(),
             name_, ": this is no state of a schedule; pass what state_dict() returned");
  OSLO_CHECK(state["schedule"] == name_, name_, ": the state is that of a ",
             state["schedule"].dump(), "; make the schedule that was saved");
  const auto base_lrs = state["base_lrs"].get<std::vector<double>>();
  OSLO_CHECK(base_lrs.size() == base_lrs_.size(), name_, ": the state is of ", base_lrs.size(),
             " parameter groups, and the optimizer has ", base_lrs_.size(),
             "; make the groups that it had");
  base_lrs_ = base_lrs;
  step_count_ = state["steps"].get<unsigned>();
}

}  // namespace oslo
