#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "checkpoint/state/model_state.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// A parameter that an optimizer steps, and what the model says of it.
struct SteppedParameter {
  at::Tensor parameter;
  const ModelState::Tensor* in_model;
};

/// What becomes of tensors that an optimizer steps and that are no parameters of the model.
enum class ForeignTensors { refused, left_out };

/// The parameters of each of the optimizer's groups. Left out are those that the model registers
/// and does not compute with (a tied layer's first weight). Throws `Error` naming group and shape
/// for a tensor that is no parameter of the model, unless those are left out, too. `state` must
/// outlive the result.
std::vector<std::vector<SteppedParameter>> stepped_parameters(
    const torch::optim::Optimizer& optimizer, const ModelView& model, const ModelState& state,
    ForeignTensors foreign = ForeignTensors::refused);

/// Whether an optimizer's operators make states in such a type: in the parameter's, which most are
/// made like, or in its gradients' (SGD's momentum begins as a gradient).
bool is_type_of_state(c10::ScalarType type, const at::Tensor& parameter);

/// This rank's part of a tensor of a parameter's state, as an ordinary tensor. A whole one, as an
/// optimizer has that was made before the parameter was cut, is cut as its states are. Throws
/// `Error` naming `what` where it has not the parameter's shape, or another dtype than such states.
at::Tensor part_of_state(const at::Tensor& tensor, const ModelState::Tensor& parameter,
                         const std::string& what);

/// This rank's part of a tensor of a parameter's state, ordinary, as such states lie: with the mark
/// that says so, on the parameter's device, with its strides, in memory that nothing else shares.
at::Tensor state_like(const at::Tensor& part, const at::Tensor& parameter);

}  // namespace oslo
