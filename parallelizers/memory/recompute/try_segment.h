#pragma once

#include <string>

#include "parallelizers/memory/recompute/record/segment.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo::recompute {

/// A recorded segment has ended: decides what is kept, and lets go of the rest. With `try_it` its
/// operators run again at once, and all that they save is compared. Returns why the segment keeps
/// everything after all; empty where it is computed again in backward. The same on all ranks that
/// share the layers: with `try_it` one all-reduce over each axis that cuts the model.
std::string end_segment(Segment& segment, const ModelContext& context, bool try_it);

}  // namespace oslo::recompute
