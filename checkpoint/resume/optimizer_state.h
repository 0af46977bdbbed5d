#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/index/saved_optimizer.h"
#include "checkpoint/resume/stepped_parameters.h"
#include "checkpoint/state/model_state.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// What a checkpoint holds of an optimizer: its kind, its groups with their options, and the state
/// of each parameter that has one. Tensors of a state lie as the parameter's `ParameterLayouts`
/// say; those that data replicas have shares of (`SharedStates`) are whole.
class OptimizerState {
 public:
  /// Looks at this rank's optimizer. Throws `Error` for one that cannot be saved (`kind_of`,
  /// `stepped_parameters`). `optimizer` and `state` must outlive it.
  OptimizerState(const torch::optim::Optimizer& optimizer, const ModelView& model,
                 const ModelState& state, ForeignTensors foreign = ForeignTensors::refused);

  /// Takes the states, those that data replicas share out made whole, and lets every rank know what
  /// other pipeline stages hold. Collective over the world; throws on every rank where ranks have
  /// other groups or options, where a state cannot be saved (`part_of_state`), or where ranks of
  /// one stage have other states.
  void agree(const MPU& mpu);

  /// After `agree` the same on all ranks.
  const SavedOptimizer& saved() const { return saved_; }

  /// The parameters that it steps, by its groups; `tensors` has their states in this order.
  const std::vector<std::vector<SteppedParameter>>& groups() const { return groups_; }

  /// The tensors of all states, by `optimizer_key`, in the order of the parameters: shapes where
  /// other stages hold them. Throws `Error` naming the parameter where this rank lacks a state that
  /// others have. After `agree` the same list on all ranks.
  std::vector<ModelState::Tensor> tensors() const;

 private:
  void take_states();

  const torch::optim::Optimizer* optimizer_;
  std::vector<std::vector<SteppedParameter>> groups_;
  SavedOptimizer saved_;
  std::string outline_;                      ///< as text: groups and options
  std::map<std::string, at::Tensor> parts_;  ///< by `optimizer_key`
};

}  // namespace oslo
