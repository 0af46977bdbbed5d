#pragma once

#include <torch/nn/module.h>

#include <c10/util/Type.h>

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/load_options.h"
#include "checkpoint/save_options.h"
#include "mpu/mpu.h"
#include "oslo_cpp/config/config.h"
#include "parallelizers/plan/plan_report.h"

namespace oslo {

class PendingSave;

/// A model that `initialize` made parallel: a handle with everything that is not the model's own
/// code. It may die before the model.
class ParallelModel {
 public:
  ParallelModel(std::shared_ptr<torch::nn::Module> module, MPU mpu, Config config,
                std::vector<PlanEntry> entries, PlanForecast forecast = {},
                bool had_example = false, PlanPipeline pipeline = {});

  const std::shared_ptr<torch::nn::Module>& module() const;
  /// The model by its own class (an Impl). Throws naming both classes when it is another.
  template <typename M>
  std::shared_ptr<M> module_as() const {
    auto typed = std::dynamic_pointer_cast<M>(module());
    if (!typed) wrong_class(c10::demangle(typeid(M).name()));
    return typed;
  }

  const MPU& mpu() const;
  /// The config given to `initialize`; of a model with a pipeline with the stages of its layers
  /// (Config::with_stage_ids). A parallel checkpoint has it as parallel_config.json.
  const Config& config() const;
  /// Whether `initialize` had a forward to run.
  bool had_example() const;

  /// What became of each parameter, the gathers left, and the collectives counted since
  /// `initialize`, or in the last `count`ed call.
  Plan plan() const;

  /// Runs `step` (one training step, say) and lets `plan()` report what it moved.
  void count(const std::function<void()>& step);

  /// Throws, naming the parameter, when one that was cut has lost its mark or has been replaced
  /// since (`parameters` of a model whose marks are gone would be trained as if they were whole).
  void check() const;

  /// Scales gradients so that their norm over all axes is at most `max_norm`; returns the norm
  /// before. `norm_type` may be any positive number or infinity. Collective over the model.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0) const;

  /// Writes the model: see checkpoint/parallel_checkpoint.h. Collective over the world.
  void save_parallelized(const std::string& directory, const SaveOptions& options = {}) const;
  /// The same, but it returns when what is to be written has been copied: a thread writes, and the
  /// model may be trained on. The next save, of either kind, waits for it, and throws what became
  /// of it where nobody has asked (`PendingSave::wait`). So does the end of this model. Collective
  /// over the world. The copies' memory, as much as this rank writes, is kept for the next one.
  std::shared_ptr<PendingSave> save_async(const std::string& directory,
                                          const SaveOptions& options = {}) const;
  /// Reads what `save_parallelized` wrote, parallel or merged, into the parameters. Collective.
  void from_parallelized(const std::string& directory, const LoadOptions& options = {}) const;

 private:
  [[noreturn]] void wrong_class(const std::string& wanted) const;

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace oslo
