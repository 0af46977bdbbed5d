#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/index/saved_optimizer.h"

namespace oslo {

/// One of LibTorch's optimizers, as a checkpoint sees it: options and states by the names that
/// Python's `state_dict` gives them.
class OptimizerKind {
 public:
  using Numbers = SavedOptimizer::Numbers;
  /// A parameter's state. A tensor that is not there yet (a buffer before the first step) is left
  /// out.
  struct State {
    Numbers numbers;
    std::vector<std::pair<std::string, at::Tensor>> tensors;
  };

  virtual ~OptimizerKind() = default;
  virtual std::string name() const = 0;
  virtual bool is(const torch::optim::Optimizer& optimizer) const = 0;

  virtual Numbers options(const torch::optim::OptimizerOptions& options) const = 0;
  /// Throws `Error` naming an option that is missing or has a value of another type, with nothing
  /// set.
  virtual void set_options(torch::optim::OptimizerOptions& options,
                           const Numbers& numbers) const = 0;

  /// Throws `Error` where a class derived from the optimizer keeps a state of its own.
  virtual State state(const torch::optim::OptimizerParamState& state) const = 0;
  /// Throws `Error` naming a number that is missing, or a tensor that such a state has not.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> make_state(
      const State& parts) const = 0;
};

/// Throws `Error` for an optimizer whose state cannot be saved or resharded: LBFGS, whose state is
/// one vector over all parameters, and classes that are not LibTorch's.
const OptimizerKind& kind_of(const torch::optim::Optimizer& optimizer);

}  // namespace oslo
