#pragma once

#include "parallelizers/pipeline/schedule/order/playback.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"
#include "parallelizers/pipeline/schedule/timeline/timeline.h"

namespace oslo::pipeline {

/// The lists that the ranks of a measured step followed, in the order in which they computed. Its
/// kind is "measured". Throws where that was not one whole step.
Schedule lists_of(const Timeline& measured);

/// What a stage's passes took in the mean, without the waits inside them; no hops. By these costs
/// `simulate` tells what the lists alone make a rank wait for.
Costs costs_of(const Timeline& measured, const Schedule& schedule);

}  // namespace oslo::pipeline
