#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace oslo {

/// What a load reads beside the tensors. Every setter returns the object, so that they chain.
class LoadOptions {
 public:
  /// Where what `SaveOptions::extra` gave is put, on every rank, once everything else has been
  /// read; a checkpoint without it is refused. Null: it is not read.
  LoadOptions& extra(nlohmann::json* extra) { return extra_ = extra, *this; }

  /// Whether floating-point values are converted to the model's types where those differ (float32
  /// weights into a bfloat16 model). Otherwise, and for all other types, that is refused.
  LoadOptions& convert(bool convert) { return convert_ = convert, *this; }

  /// The optimizer that goes on from the saved one's state: of the same kind, with the same
  /// parameters in the same groups, else the load is refused. Its options become the saved ones,
  /// learning rates included; change them after the load. A checkpoint without an optimizer is
  /// refused. Null: it is not read.
  LoadOptions& optimizer(torch::optim::Optimizer* optimizer) {
    return optimizer_ = optimizer, *this;
  }

  /// The scheduler that goes on from the saved count of steps. A checkpoint without one is refused.
  LoadOptions& scheduler(torch::optim::LRScheduler* scheduler) {
    return scheduler_ = scheduler, *this;
  }

  /// Whether this rank's random generators go on from where they were. In the layout that saved
  /// each rank's own do, in another one the ranks of a data replica go on from that replica's.
  /// A checkpoint without them is refused. Unless given: where an optimizer is.
  LoadOptions& random_states(bool load) { return random_states_ = load, *this; }

  nlohmann::json* extra() const { return extra_; }
  torch::optim::Optimizer* optimizer() const { return optimizer_; }
  torch::optim::LRScheduler* scheduler() const { return scheduler_; }
  bool random_states() const { return random_states_.value_or(optimizer_ != nullptr); }
  bool convert() const { return convert_; }

 private:
  bool convert_ = false;
  nlohmann::json* extra_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
  torch::optim::LRScheduler* scheduler_ = nullptr;
  std::optional<bool> random_states_;
};

}  // namespace oslo
