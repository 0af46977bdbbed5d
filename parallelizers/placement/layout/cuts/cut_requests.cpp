#include "parallelizers/placement/layout/cuts/cut_requests.h"

#include <algorithm>
#include <numeric>

namespace oslo {
namespace {

bool heard(const Cut& cut) {
  return cut.origin() && cut.origin()->planning;
}

/// No dimension has so many elements.
constexpr int64_t kTooMany = int64_t{1} << 40;

/// The least common multiple; 0 where it is beyond any dimension.
int64_t common_unit(int64_t left, int64_t right) {
  int64_t common = 0;
  const bool overflows = __builtin_mul_overflow(left / std::gcd(left, right), right, &common);
  return overflows || common > kTooMany ? 0 : common;
}

}  // namespace

void wish_unit(const Cut& cut, int64_t unit) {
  if (!heard(cut) || unit < 1 || unit > kTooMany / cut.origin_scale()) return;
  int64_t& wanted = cut.origin()->wanted_unit;
  const int64_t both = common_unit(wanted, unit * cut.origin_scale());
  if (both > 0) wanted = both;
}

void wish_blocks(const Cut& cut, int64_t blocks) {
  if (!heard(cut) || cut.origin_scale() != 1) return;
  cut.origin()->wanted_blocks = std::max(cut.origin()->wanted_blocks, blocks);
}

void wish_same_pieces(const Cut& cut, const Cut& other, int64_t factor) {
  int64_t unit = 0;
  for (const int64_t piece : other.sizes()) unit = std::gcd(unit, piece);
  if (unit == 0 || !heard(cut) || unit > kTooMany / factor / cut.origin_scale()) return;
  // Both sides of a mismatch wish for the other's pieces. One that has to keep whole heads cannot
  // follow where a common multiple would leave ranks without a piece.
  const int64_t own = cut.origin()->wanted_unit, wanted = unit * factor * cut.origin_scale();
  const int64_t common = common_unit(own, wanted);
  if (common == 0) return;
  const bool conflict = common > std::max(own, wanted);
  if (!conflict || common <= cut.size() * cut.origin_scale() / cut.ranks()) {
    wish_unit(cut, unit * factor);
  }
}

}  // namespace oslo
