#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/pipeline/run/stray_gradients.h"

namespace oslo {

/// Throws where `loss.backward()` would give a gradient to a parameter that `initialize` has had
/// and that is none of `own`: a step of `own` would not average it over data replicas. Parameters
/// under a DistributedDataParallel, which averages them itself, are passed over. Of a loss whose
/// graph is whole on this rank. Walks the graph once; no communication.
void check_learns_only(const at::Tensor& loss, const StrayGradients::Parameters& own);

}  // namespace oslo
