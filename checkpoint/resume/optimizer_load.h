#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/resume/optimizer_kind.h"
#include "checkpoint/state/model_state.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// A checkpoint's optimizer, read for one that a program made anew; nothing of it has changed
/// before `commit`.
///
/// States come cut as this model's parameters are, whichever cut they were saved in, and replace
/// all that the optimizer had: a parameter that had none when it was saved has none. Options are
/// set in place, learning rates included.
class OptimizerLoad {
 public:
  /// Throws `Error` where the checkpoint has no optimizer, one of another kind, another number of
  /// groups, other parameters in a group, a state of a parameter that no group has, or states of
  /// another shape or dtype.
  OptimizerLoad(torch::optim::Optimizer& optimizer, const ModelView& model, const ModelState& state,
                const CheckpointFolder& folder);

  void commit();

 private:
  using ParamState = std::unique_ptr<torch::optim::OptimizerParamState>;

  torch::optim::Optimizer& optimizer_;
  const OptimizerKind& kind_;
  const SavedOptimizer& saved_;
  /// By the parameter's implementation, as the optimizer keeps them; null: none.
  std::vector<std::pair<void*, ParamState>> states_;
};

}  // namespace oslo
