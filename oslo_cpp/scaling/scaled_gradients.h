#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// The gradients of a program's models, of which a scaler asks one question a step: are all of them
/// finite, on every rank?
class ScaledGradients {
 public:
  /// `ranks`: all that have a part of the models, or copies of them.
  ScaledGradients(const std::vector<std::shared_ptr<torch::nn::Module>>& models,
                  std::shared_ptr<Group> ranks);

  Group& ranks() const { return *ranks_; }

  /// Throws, naming the parameter, where the optimizer has one that is none of the models'. No
  /// communication: the same on all ranks.
  void check_own(torch::optim::Optimizer& optimizer) const;

  /// Whether every gradient of every model is finite, on all ranks alike, and unscales those of
  /// `optimizer` by the way. Collective over the ranks: one message of a few numbers. Throws on all
  /// of them where no rank has any gradient, where one has a gradient of half precision, which
  /// would lose by unscaling what scaling saved, and where scales differ.
  bool all_finite(double scale, torch::optim::Optimizer& optimizer);

  /// Divides the gradients of `optimizer` by `scale`. No communication.
  void unscale(double scale, torch::optim::Optimizer& optimizer);

 private:
  std::shared_ptr<Group> ranks_;
  std::vector<NamedTensor> parameters_;  ///< each once
  std::unordered_map<const c10::TensorImpl*, size_t> numbers_;
};

}  // namespace oslo
