#pragma once

#include "parallelizers/placement/layout/cuts/cut.h"

namespace oslo {

/// Operators that had to gather say how the parameter behind the cut should have been cut; the
/// planner plans again with it. Cuts without an origin, and those of a run that nobody plans, have
/// nobody to tell. Units beyond any
/// dimension are no wish.

/// Pieces in whole multiples of `unit` elements of this cut.
void wish_unit(const Cut& cut, int64_t unit);

/// `blocks` runs instead of one.
void wish_blocks(const Cut& cut, int64_t blocks);

/// The pieces of `other` times `factor`, which another operand has.
void wish_same_pieces(const Cut& cut, const Cut& other, int64_t factor);

}  // namespace oslo
