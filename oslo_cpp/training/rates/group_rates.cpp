#include "oslo_cpp/training/rates/group_rates.h"

#include "mpu/base/error.h"

namespace oslo {

std::vector<double> group_rates(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_group_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  auto& groups = optimizer.param_groups();
  OSLO_CHECK(groups.size() == rates.size(), "learning rates: there are ", rates.size(),
             " of them, and the optimizer has ", groups.size(),
             " parameter groups; add groups before the schedule is made");
  for (size_t i = 0; i < rates.size(); ++i) groups[i].options().set_lr(rates[i]);
}

}  // namespace oslo
