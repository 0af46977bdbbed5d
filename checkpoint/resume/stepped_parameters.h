#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "checkpoint/model_state.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// A parameter that an optimizer steps, and what the model says of it.
struct SteppedParameter {
  at::Tensor parameter;
  const ModelState::Tensor* in_model;
};

/// The parameters of each of the optimizer's groups. Left out are those that the model registers
/// and does not compute with (a tied layer's first weight). Throws `Error` naming group and shape
/// for a tensor that is no parameter of the model. `state` must outlive the result.
std::vector<std::vector<SteppedParameter>> stepped_parameters(
    const torch::optim::Optimizer& optimizer, const ModelView& model, const ModelState& state);

/// This rank's part of a tensor of a parameter's state, as an ordinary tensor. A whole one, as an
/// optimizer has that was made before the parameter was cut, is cut like its parameter. Throws
/// `Error` naming `what` where it has not the parameter's shape and dtype.
at::Tensor part_of_state(const at::Tensor& tensor, const ModelState::Tensor& parameter,
                         const std::string& what);

}  // namespace oslo
