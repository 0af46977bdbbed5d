#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace oslo {

// The letters (dimension_map.h) of a reduction's result.

/// What is reduced: dimensions, which go unless they are kept.
struct Reduced {
  std::vector<int64_t> dims;
  bool keep = false;
};

/// `own` after a reduction: letters at `dims` go, or become '-' where the dimension is kept.
inline std::string reduced(const std::string& own, const std::vector<int64_t>& dims, bool keep) {
  std::string left;
  for (size_t d = 0; d < own.size(); ++d) {
    const bool goes = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
    if (!goes) {
      left += own[d];
    } else if (keep) {
      left += '-';
    }
  }
  return left;
}

inline std::string letters_at(const std::string& own, const std::vector<int64_t>& dims) {
  std::string at;
  for (const int64_t d : dims) at += own[d];
  return at;
}

}  // namespace oslo
