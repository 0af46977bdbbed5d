#include "parallelizers/placement/layout/known_strides.h"

#include <utility>

namespace oslo {

std::optional<std::vector<int64_t>> KnownStrides::find(const std::string& call, size_t index,
                                                       size_t element) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return std::nullopt;
  const Strides& results = found->second;
  const bool told = index < results.size() && element < results[index].size();
  return told ? results[index][element] : std::vector<int64_t>();
}

void KnownStrides::keep(std::string call, Strides strides) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (calls_.size() >= kMostCalls) calls_.clear();
  calls_.insert_or_assign(std::move(call), std::move(strides));
}

}  // namespace oslo
