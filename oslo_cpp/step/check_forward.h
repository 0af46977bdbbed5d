#pragma once

#include <functional>

#include "oslo_cpp/step/step_models.h"
#include "parallelizers/pipeline/crossing/forward_needs.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo {

/// What the schedule has to know of a forward: from what the model's example showed; without one,
/// and for several models, from a run of `forward` on shapes. Nothing where it cannot be run on
/// shapes. A forward that waits inside one of a rank's stages holds up the others, so a program
/// that comes back to early stages may not be able to run under the lists: throws then, on every
/// rank and before anything is sent.
ForwardNeeds check_forward(const pipeline::Schedule& schedule, const StepModels& models,
                           const std::function<void()>& forward);

}  // namespace oslo
