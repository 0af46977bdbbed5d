#pragma once

#include <vector>

#include "checkpoint/state/model_state.h"

namespace oslo {

/// Whether data replicas keep parts of the tensor (zero_optimization, stage 3).
bool is_over_replicas(const ModelState::Tensor& tensor);

/// Puts in the place of such parts what a replica would have that keeps its own copy. Collective
/// over the replicas, tensor by tensor; those that do not keep the values (`keeps`) let go of each
/// before the next. Under NoGradGuard.
void join_replicas(std::vector<ModelState::Tensor>& tensors, bool keeps);

}  // namespace oslo
