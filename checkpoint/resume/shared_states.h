#pragma once

#include <map>

#include "checkpoint/resume/optimizer_kind.h"

namespace oslo {

/// What an optimizer of which every data replica keeps a share of the states (ZeroOptimizer) is to
/// checkpoints and resharding, beside a `torch::optim::Optimizer`.
class SharedStates {
 public:
  /// By the parameter's implementation, as an optimizer keeps them.
  using Whole = std::map<const void*, OptimizerKind::State>;

  virtual ~SharedStates() = default;
  /// What an optimizer would have that shares nothing out. Collective over the replicas; needs
  /// memory for all of it. Throws `Error` for an optimizer that cannot be saved (`kind_of`).
  virtual Whole whole_states() const = 0;
  /// Somebody has put whole states in the place of the shares; the next step shares them out, among
  /// the replicas that the model has then.
  virtual void states_replaced() = 0;
};

}  // namespace oslo
