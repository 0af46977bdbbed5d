#include "tools/oslo/run/visible_devices.h"

#include <sstream>
#include <stdexcept>

namespace oslo::tool {

std::vector<std::string> one_gpu_each(int ranks, const std::optional<std::string>& visible) {
  std::vector<std::string> gpus;
  if (!visible) {
    for (int rank = 0; rank < ranks; ++rank) gpus.push_back(std::to_string(rank));
    return gpus;
  }
  std::istringstream entries(*visible);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (!entry.empty()) gpus.push_back(entry);
  }
  if (static_cast<int>(gpus.size()) < ranks) {
    throw std::invalid_argument("CUDA_VISIBLE_DEVICES=" + *visible + " names " +
                                std::to_string(gpus.size()) + " GPUs, and " +
                                std::to_string(ranks) + " ranks are to have one each");
  }
  gpus.resize(ranks);
  return gpus;
}

}  // namespace oslo::tool
