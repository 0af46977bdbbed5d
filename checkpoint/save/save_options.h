#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "checkpoint/storage/format.h"
#include "mpu/base/error.h"

namespace torch::optim {
class LRScheduler;
class Optimizer;
}  // namespace torch::optim

namespace oslo {

/// What a save writes. Every setter returns the object, so that they chain:
/// `SaveOptions().merge_checkpoints(true).format("safetensors")`.
class SaveOptions {
 public:
  /// True: whole tensors under the names of the unparallelized model, for any program to read.
  /// False (the default): each rank writes its own part, which is what resuming is for.
  SaveOptions& merge_checkpoints(bool merge) { return merge_ = merge, *this; }

  /// "safetensors" or "bin" (Python's torch.save); throws `Error` for anything else. Unless given,
  /// parts are safetensors and a merged checkpoint has both files.
  SaveOptions& format(const std::string& name) { return format(format_called(name)); }
  SaveOptions& format(Format format) { return format_ = format, *this; }

  /// The model's hyperparameters, written beside the tensors as config.json. A JSON object;
  /// throws `Error` for one nested deeper than 16 levels, with text that is not UTF-8, or of more
  /// than 16 MiB or a million values as text.
  SaveOptions& config(nlohmann::json config);

  /// What the model was parallelized with, written beside the parts as parallel_config.json; a
  /// merged checkpoint has none, and refuses it. `ParallelModel::save_parallelized` gives its own
  /// config where none was given. Within the same limits.
  SaveOptions& parallel_config(nlohmann::json config);

  /// What else a program resumes from (a step, an epoch), written as extra.json into the same
  /// folder, so that it is of the same save as the tensors. A JSON object, within the same limits.
  SaveOptions& extra(nlohmann::json extra);

  /// The optimizer of the model's parameters, made before or after `initialize`: its groups'
  /// options (learning rates) and the state of each parameter, which lies in the files as the
  /// parameter does. SGD, Adam, AdamW, Adagrad and RMSprop; others are refused by name. Give it on
  /// every rank; it must live until the save has returned. Null: none.
  SaveOptions& optimizer(const torch::optim::Optimizer* optimizer) {
    return optimizer_ = optimizer, *this;
  }

  /// A learning-rate scheduler over that optimizer: how often it has stepped. With the learning
  /// rates that is all of LibTorch's `StepLR`; a class of one's own keeps the rest in `extra`.
  SaveOptions& scheduler(const torch::optim::LRScheduler* scheduler) {
    return scheduler_ = scheduler, *this;
  }

  /// Whether every rank's random generators are saved: LibTorch's default one, the streams of the
  /// MPU, and that of the model's GPU. Unless given: where an optimizer is.
  SaveOptions& random_states(bool save) { return random_states_ = save, *this; }

  /// Saves into a series: the directory that is given then holds one checkpoint for each step that
  /// was saved, `step-000100`, and a file `latest` that names the newest, which a load of the
  /// directory takes. From 0.
  SaveOptions& step(int64_t step) { return step_ = step, *this; }

  /// Of a series all but so many are removed, when this one is in place. 0: none is. Those stay
  /// that the run came by, the last saved first: after it went back to step 100 that is 110, 100,
  /// and only then steps 200 and 300, which it left.
  SaveOptions& keep_last(int count) {
    OSLO_CHECK(count >= 0, "keep_last(", count, "): how many checkpoints stay, or 0 for all");
    return keep_last_ = count, *this;
  }

  const std::optional<int64_t>& step() const { return step_; }
  int keep_last() const { return keep_last_; }

  const torch::optim::Optimizer* optimizer() const { return optimizer_; }
  const torch::optim::LRScheduler* scheduler() const { return scheduler_; }
  bool random_states() const { return random_states_.value_or(optimizer_ != nullptr); }

  bool merge_checkpoints() const { return merge_; }
  const std::optional<Format>& format() const { return format_; }
  /// Null where none was given.
  const nlohmann::json& config() const;
  const nlohmann::json& parallel_config() const;
  const nlohmann::json& extra() const;

 private:
  bool merge_ = false;
  std::optional<Format> format_;
  const torch::optim::Optimizer* optimizer_ = nullptr;
  const torch::optim::LRScheduler* scheduler_ = nullptr;
  std::optional<bool> random_states_;
  std::optional<int64_t> step_;
  int keep_last_ = 0;
  std::shared_ptr<const nlohmann::json> config_;
  std::shared_ptr<const nlohmann::json> parallel_config_;
  std::shared_ptr<const nlohmann::json> extra_;
};

}  // namespace oslo
