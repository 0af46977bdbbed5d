#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace oslo {

/// Where a rank that has failed says so to those that wait for it in `World::exchange`.
inline constexpr const char* kFailureKey = "failure";

inline void report_failure(c10d::Store& store, const std::string& what) {
  store.set(kFailureKey, std::vector<uint8_t>(what.begin(), what.end()));
}

}  // namespace oslo
