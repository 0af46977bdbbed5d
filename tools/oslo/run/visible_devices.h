#pragma once

#include <optional>
#include <string>
#include <vector>

namespace oslo::tool {

/// What CUDA_VISIBLE_DEVICES is for each of `ranks` ranks that see one GPU each: an entry of
/// `visible`, this process's own value, else the rank's number. Throws `std::invalid_argument`
/// where it has too few entries. How many GPUs there are is not looked at: that takes a driver.
std::vector<std::string> one_gpu_each(int ranks, const std::optional<std::string>& visible);

}  // namespace oslo::tool
