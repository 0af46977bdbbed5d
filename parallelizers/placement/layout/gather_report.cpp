#include "parallelizers/placement/layout/gather_report.h"

namespace oslo {

void GatherReport::record(const std::string& operation, const std::string& reason, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = places_.find({operation, reason});
  if (found == places_.end()) {
    const bool room = entries_.size() < kMostEntries;
    const GatherEntry fresh{room ? operation : "any", room ? reason : kFurther};
    found = places_.emplace(std::pair(fresh.operation, fresh.reason), entries_.size()).first;
    if (found->second == entries_.size()) entries_.push_back(fresh);
  }
  GatherEntry& entry = entries_[found->second];
  ++entry.calls;
  entry.bytes += bytes;
}

std::vector<GatherEntry> GatherReport::entries() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entries_;
}

int64_t GatherReport::calls() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t calls = 0;
  for (const GatherEntry& entry : entries_) calls += entry.calls;
  return calls;
}

void GatherReport::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  entries_.clear();
  places_.clear();
}

}  // namespace oslo
