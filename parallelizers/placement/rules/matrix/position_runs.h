#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace oslo {

/// A range of this rank's part of a sequence.
struct PositionRun {
  int64_t start, length;
};

/// Where positions, which rise, follow each other without a gap: what a causal mask shows to such a
/// run ends at its last position, or is a triangle. Of many runs (which would be as many kernels)
/// one for all; none of no positions.
std::vector<PositionRun> runs_of(const at::Tensor& positions);

}  // namespace oslo
