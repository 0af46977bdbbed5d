#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
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
/// Threads may call it together.
class GatherReport {
 public:
  /// Gathers for as many reasons are told apart; those for further ones are counted together, under
  /// `kFurther`. A run whose reasons never repeat must not fill the memory.
  static constexpr size_t kMostEntries = 1000;
  static constexpr const char* kFurther = "further reasons";

  void record(const std::string& operation, const std::string& reason, int64_t bytes);
  std::vector<GatherEntry> entries() const;
  int64_t calls() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<GatherEntry> entries_;
  std::map<std::pair<std::string, std::string>, size_t> places_;  ///< in `entries_`
};

}  // namespace oslo
