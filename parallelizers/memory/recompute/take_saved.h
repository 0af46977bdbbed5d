#pragma once

#include "parallelizers/memory/recompute/rerun.h"

namespace oslo::recompute {

/// The tensor in `slot`, after running what is needed for it. On any thread; the state of the
/// calling thread stays as it is.
at::Tensor take_saved(Segment& segment, SavedSlot& slot);

/// Runs what is needed, and fills all slots, or has `take` do so.
void run_again(Segment& segment, const TakeSlot& take = {});

}  // namespace oslo::recompute
