#include "mpu/base/words/nearest_name.h"

#include <algorithm>
#include <numeric>

namespace oslo {
namespace {

/// Letters changed, left out, added, or swapped with the next one.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j] + (a[i] == b[j] ? 0 : 1), above[j + 1] + 1, row[j] + 1});
      const bool swapped = i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j];
      if (swapped) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

/// "tp_size" for "tensor_parallel_size", and not for "data_parallel_size": three letters or more,
/// which stand there in this order, the first one first.
bool is_short_for(std::string_view name, std::string_view other) {
  size_t found = 0;
  for (const char letter : other) {
    if (found < name.size() && name[found] == letter) ++found;
  }
  return name.size() >= 3 && other.starts_with(name[0]) && found == name.size();
}

}  // namespace

const std::string* name_meant(const std::vector<std::string>& names, std::string_view name) {
  const std::string* meant = nullptr;
  size_t least = 0;
  for (const std::string& each : names) {
    const size_t distance = edit_distance(each, name);
    if (distance > std::max<size_t>(1, each.size() / 3) && !is_short_for(name, each)) continue;
    if (meant == nullptr || distance < least) meant = &each, least = distance;
  }
  return meant;
}

bool is_near(std::string_view name, std::string_view other) {
  return edit_distance(name, other) <= std::max<size_t>(1, other.size() / 4);
}

}  // namespace oslo
