#include "parallelizers/placement/wishes.h"

#include <algorithm>
#include <numeric>

namespace oslo {

void wish_unit(const Cut& cut, int64_t unit) {
  if (!cut.origin()) return;
  int64_t& wanted = cut.origin()->wanted_unit;
  wanted = std::lcm(wanted, unit * cut.origin_scale());
}

void wish_blocks(const Cut& cut, int64_t blocks) {
  if (!cut.origin() || cut.origin_scale() != 1) return;
  cut.origin()->wanted_blocks = std::max(cut.origin()->wanted_blocks, blocks);
}

void wish_same_pieces(const Cut& cut, const Cut& other, int64_t factor) {
  int64_t unit = 0;
  for (const int64_t piece : other.sizes()) unit = std::gcd(unit, piece);
  if (unit == 0 || !cut.origin()) return;
  // Both sides of a mismatch wish for the other's pieces. One that has to keep whole heads cannot
  // follow where a common multiple would leave ranks without a piece.
  const int64_t own = cut.origin()->wanted_unit, wanted = unit * factor * cut.origin_scale();
  const int64_t common = std::lcm(own, wanted);
  const bool conflict = common > std::max(own, wanted);
  if (!conflict || common * cut.ranks() <= cut.size() * cut.origin_scale()) {
    wish_unit(cut, unit * factor);
  }
}

}  // namespace oslo
