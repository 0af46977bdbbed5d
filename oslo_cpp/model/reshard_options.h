#pragma once

#include <algorithm>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace oslo {

/// What goes along when a model changes its layout in memory (`ParallelModel::reshard`,
/// `deparallelize`). Every setter returns the object, so that they chain.
class ReshardOptions {
 public:
  /// An optimizer whose states go where their parameters go: SGD, Adam, AdamW, Adagrad and RMSprop,
  /// others are refused by name. Give it on every rank, stepped alike; where a model has several,
  /// call it for each, in the same order on every rank. Its groups keep their parameters and
  /// options, and states of tensors that are no parameters of the model stay as they are. Null:
  /// none, and a model whose parameters have states that are parts is refused.
  ReshardOptions& optimizer(torch::optim::Optimizer* optimizer) {
    const bool known =
        std::find(optimizers_.begin(), optimizers_.end(), optimizer) != optimizers_.end();
    if (optimizer != nullptr && !known) optimizers_.push_back(optimizer);
    return *this;
  }

  const std::vector<torch::optim::Optimizer*>& optimizers() const { return optimizers_; }

 private:
  std::vector<torch::optim::Optimizer*> optimizers_;
};

}  // namespace oslo
