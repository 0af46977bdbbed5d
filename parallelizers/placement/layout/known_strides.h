#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace oslo {

/// The strides that one device's results have, of the calls that asked for them
/// (placement/engine/global_strides.h). Threads may call it together.
class KnownStrides {
 public:
  /// So many calls are told apart; then it starts anew. A run whose calls never repeat must not
  /// fill the memory.
  static constexpr size_t kMostCalls = 4096;

  /// By result, then by element of a list; empty where nobody could tell.
  using Strides = std::vector<std::vector<std::vector<int64_t>>>;

  /// Those of result `index` and `element`; nothing where the call was not asked for yet.
  std::optional<std::vector<int64_t>> find(const std::string& call, size_t index,
                                           size_t element) const;
  void keep(std::string call, Strides strides);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Strides> calls_;
};

}  // namespace oslo
