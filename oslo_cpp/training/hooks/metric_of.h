#pragma once

#include <string>

#include "oslo_cpp/training/trainer/training.h"

namespace oslo {

/// A mean of the last epoch or evaluation. Throws, naming those that there are, where there is none
/// of this name.
double metric_of(const Training& training, const std::string& metric, const std::string& for_whom);

}  // namespace oslo
