#pragma once

#include <string>
#include <vector>

#include "parallelizers/memory/ranks_in_step.h"
#include "parallelizers/memory/recompute/record/segment.h"

namespace oslo::recompute {

/// What a recorded segment gives up (record/needs.h), of all ranks that share its layers together:
/// all of them then run the same operators again. One all-reduce over each axis of theirs; none
/// where nothing is given up by `keep_at_most`.
std::vector<bool> agree_on_given_up(const Segment& segment, const RanksInStep& ranks);

/// A recorded segment has ended: decides what is kept, and lets go of the rest. With `try_it` its
/// operators run again at once, and all that they save is compared. Returns why the segment keeps
/// everything after all; empty where it is computed again in backward. The same on all ranks that
/// share the layers: with `try_it` one all-reduce over each axis of theirs.
std::string end_segment(Segment& segment, const RanksInStep& ranks, bool try_it);

}  // namespace oslo::recompute
