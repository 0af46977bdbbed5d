#include "mpu/base/words/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace oslo {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

const std::string& nearest_name(const std::vector<std::string>& names, std::string_view name) {
  return *std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return edit_distance(a, name) < edit_distance(b, name);
  });
}

bool is_near(std::string_view name, std::string_view other) {
  return edit_distance(name, other) <= std::max<size_t>(1, other.size() / 4);
}

}  // namespace oslo
