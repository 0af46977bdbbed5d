#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace oslo {

/// The learning rate of each parameter group of an optimizer.
std::vector<double> group_rates(torch::optim::Optimizer& optimizer);

/// Sets them. Throws unless there is one for each group.
void set_group_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

}  // namespace oslo
