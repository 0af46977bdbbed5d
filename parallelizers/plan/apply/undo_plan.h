#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Of marked tensors, what else is a part of the same, beside the gradient, that the caller answers
/// for.
using KnownHolders = std::unordered_map<const c10::TensorImpl*, std::vector<at::Tensor>>;

/// Makes every parameter and buffer of a model whole and ordinary on every rank, gradients with
/// them, in place: the tensors stay the objects that typed members, ties and optimizers hold.
/// Collective over the model's ranks; what one copy of the model holds goes to the ranks of that
/// copy. Gathers tensor by tensor: a rank ends with the whole model, and needs one tensor more on
/// the way.
///
/// Throws the same `Error` on every rank, naming the parameter, and changes nothing: where a graph
/// that is still alive, or a DistributedDataParallel, waits for its gradients; where some ranks of
/// one part have a gradient and others none; where anything beside its gradient and what the caller
/// answers for still has a part of it, as an optimizer that has stepped does.
void make_whole(const ModelView& model, const MPU& mpu, const KnownHolders& known = {});

}  // namespace oslo
