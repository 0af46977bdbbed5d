#pragma once

#include <cstdint>
#include <optional>

#include "parallelizers/placement/layout/cuts/cut.h"

namespace oslo {

/// A range of a cut dimension of which every rank finds its share inside its own part.
struct CutRange {
  CutPtr cut;     ///< of the range
  int64_t start;  ///< in this rank's part
  int64_t length;
};

/// The range that begins at `start`, where it begins and ends between stretches: query, key and
/// value of a fused projection. Ranks keep the shares that they have of the whole.
std::optional<CutRange> range_of_stretches(const Cut& cut, int64_t start, int64_t length, int rank);

/// Any range: each rank keeps what it has of it, which may be nothing.
CutRange range_of_elements(const Cut& cut, int64_t start, int64_t length, int rank);

}  // namespace oslo
