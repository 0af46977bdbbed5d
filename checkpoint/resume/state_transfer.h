#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/resume/optimizer_kind.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/apply/undo_plan.h"

namespace oslo {

/// An optimizer's states while its parameters go from one layout into another, without a file: made
/// in the old layout, and given back in the new one. Parameters must stay the objects that they
/// were, as `make_whole` and `initialize` leave them; so do the optimizer's groups, and the states
/// of tensors that are no parameters of the model.
///
/// In between a rank keeps its parts of the states in the old layout, and the old layout's groups.
class StateTransfer {
 public:
  /// Looks at the states; nothing of the optimizer changes before `give`, and it must live until
  /// then. Collective over the world, by its store alone. Throws the same `Error` on every rank for
  /// what a checkpoint could not hold either (`kind_of`, `OptimizerState::agree`), and for an
  /// optimizer that steps no parameter of the model.
  StateTransfer(torch::optim::Optimizer& optimizer, const ModelView& model, const MPU& mpu);

  /// The states that are parts as their parameters are: what `make_whole` finds beside the
  /// gradients.
  const KnownHolders& holders() const { return holders_; }

  /// Puts each parameter's state where the parameter lies now, bit for bit; a parameter that had
  /// none has none, and on ranks that do not hold a parameter there is no state of it. Collective
  /// over the model's ranks in the old layout: gathers tensor by tensor. Call it once.
  void give();

 private:
  struct State {
    at::Tensor parameter;
    bool was_marked = false;
    OptimizerKind::Numbers numbers;
    std::vector<std::pair<std::string, at::Tensor>> tensors;  ///< in the old layout
  };

  torch::optim::Optimizer& optimizer_;
  const OptimizerKind* kind_ = nullptr;
  std::vector<State> states_;
  KnownHolders holders_;
};

}  // namespace oslo
