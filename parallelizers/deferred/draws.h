#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Where the draws begin that the parameters and buffers of a model under `DeferredInit` are made
/// of: a row of bytes each, of one generator's state, in an order that the recorded calls decide.
/// [0, bytes] where nothing is drawn.
at::Tensor states_of_draws(const ModelView& model);

/// Lets the same draws begin at `states`, which another rank's model of equal calls gave.
void set_states_of_draws(const ModelView& model, const at::Tensor& states);

}  // namespace oslo
