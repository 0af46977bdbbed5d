#include "mpu/gather_report.h"

namespace oslo {

void GatherReport::record(const std::string& operation, const std::string& reason, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (GatherEntry& entry : entries_) {
    if (entry.operation == operation && entry.reason == reason) {
      ++entry.calls;
      entry.bytes += bytes;
      return;
    }
  }
  entries_.push_back({operation, reason, 1, bytes});
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
}

}  // namespace oslo
