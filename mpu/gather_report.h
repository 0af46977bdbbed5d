#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace oslo {

/// One operator that gathered: how often, how many bytes this rank received, and why.
struct GatherEntry {
  std::string operation;
  std::string reason;
  int64_t calls = 0;
  int64_t bytes = 0;
};

/// The list of rules to write: which operators had to gather a cut value. Empty is the goal.
class GatherReport {
 public:
  void record(const std::string& operation, const std::string& reason, int64_t bytes);
  std::vector<GatherEntry> entries() const;
  int64_t calls() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<GatherEntry> entries_;
};

}  // namespace oslo
