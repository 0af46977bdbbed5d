#pragma once

#include <torch/nn/module.h>

#include <c10/util/Type.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/directory/load_options.h"
#include "checkpoint/save/save_options.h"
#include "mpu/grid/mpu.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/model/reshard_options.h"
#include "parallelizers/plan/report/plan_report.h"

namespace oslo {

class PendingSave;
class StageAssignment;
class StateTransfer;
struct Explanation;
struct ForwardSurveys;
struct InitializeOptions;

/// A model that `initialize` made parallel: a handle with everything that is not the model's own
/// code. It may die before the model.
class ParallelModel {
 public:
  ParallelModel(std::shared_ptr<torch::nn::Module> module, MPU mpu, Config config,
                std::vector<PlanEntry> entries, PlanForecast forecast = {},
                bool had_example = false, PlanPipeline pipeline = {},
                std::shared_ptr<const ForwardSurveys> surveys = nullptr);

  /// What `initialize` saw in the example; or why there is no explanation of it.
  void set_explanation(std::shared_ptr<const Explanation> explanation, std::string missing);

  /// What the model's class says of its stages, for `reshard`.
  void set_class_stages(const StageAssignment& stages);
  const StageAssignment& class_stages() const;

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
  /// What that showed a schedule with several stages a rank; null where there was none, or a rank
  /// has one stage.
  const std::shared_ptr<const ForwardSurveys>& surveys() const;

  /// LiBai's: the pipeline stage of the model's layer `layer_idx`, by the rule or as the program
  /// said (parallelizers/stages/model_layers.h says what counts as one); from 0, -1 is the last
  /// layer. 0 without a pipeline. Throws, naming how many there are, for a layer that there is not.
  int get_layer_stage_id(int layer_idx) const;

  /// What became of each parameter, the gathers left, and the collectives counted since
  /// `initialize`, or in the last `count`ed call.
  Plan plan() const;

  /// Runs `step` (one training step, say) and lets `plan()` report what it moved.
  void count(const std::function<void()>& step);

  /// How every activation lies, what moves for it, and why (oslo_cpp/explain/explanation.h): of the
  /// step that was recorded last, else of the example that `initialize` was given, which it ran on
  /// shapes. Throws, naming the way out, where there is neither. No communication.
  Explanation explain() const;
  /// Runs `step` (forward and backward, on this thread), and explains it. Every rank calls it, as
  /// it would call the step. Recording takes time; nothing is slower afterwards.
  Explanation explain(const std::function<void()>& step);

  /// Throws, naming the parameter, when one that was cut has lost its mark or has been replaced
  /// since (`parameters` of a model whose marks are gone would be trained as if they were whole).
  void check() const;

  /// Scales gradients so that their norm over all axes is at most `max_norm`; returns the norm
  /// before. `norm_type` may be any positive number or infinity. Collective over the model.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0) const;

  /// Writes the model: see checkpoint/load/parallel_checkpoint.h. Collective over the world.
  void save_parallelized(const std::string& directory, const SaveOptions& options = {}) const;
  /// The same, but it returns when what is to be written has been copied: a thread writes, and the
  /// model may be trained on. The next save, of either kind, waits for it, and throws what became
  /// of it where nobody has asked (`PendingSave::wait`). So does the end of this model. Collective
  /// over the world. The copies' memory, as much as this rank writes, is kept for the next one.
  std::shared_ptr<PendingSave> save_async(const std::string& directory,
                                          const SaveOptions& options = {}) const;
  /// Reads what `save_parallelized` wrote in any layout, or a folder of Hugging Face's, into the
  /// parameters. Collective.
  void from_parallelized(const std::string& directory, const LoadOptions& options = {}) const;

  /// Makes the model an ordinary one again on every rank: parameters,
  /// buffers and gradients are whole plain tensors, the same objects as before, and no
  /// operator on them communicates. Collective; no file is written. Each rank then has memory for
  /// the whole model. The handle goes on as that of a model of which nothing is cut; what was made
  /// of it (PipelineSchedule, DistributedDataParallel) does not.
  ///
  /// An optimizer keeps its parameters and groups. What it keeps of earlier steps are parts of
  /// states: `ReshardOptions().optimizer(&optimizer)` makes them whole, bit for bit, on every rank;
  /// where it has any of a cut parameter and is not given, this throws (`make_whole`).
  ///
  /// Throws the same `Error` on every rank, and model and optimizer are as they were: where the
  /// optimizer cannot go along (`StateTransfer`), where only some ranks give one, and as
  /// `make_whole` says.
  void deparallelize(const ReshardOptions& options = {});

  /// The model in another layout, without a file, as if it had been initialized with `config` and
  /// had these weights, gradients and states: `deparallelize`, then `initialize`, so that each rank
  /// needs memory for the whole model on the way, though of an optimizer's states for its parts,
  /// old and new, and one whole tensor. All handles to this model are of the new layout.
  /// `initialize` gets `how`; the world is this one.
  ///
  /// Throws on every rank where the config does not fit the world, and as `deparallelize` does, and
  /// everything is as it was; where the config does not fit the model, and model and optimizer are
  /// then ordinary ones.
  void reshard(const Config& config);
  void reshard(const Config& config, const ReshardOptions& options);
  void reshard(const Config& config, const InitializeOptions& how,
               const ReshardOptions& options = {});

 private:
  [[noreturn]] void wrong_class(const std::string& wanted) const;
  /// The model as `deparallelize` leaves it, and the states that are to be given back to the
  /// optimizers of the options.
  std::vector<StateTransfer> make_ordinary(const ReshardOptions& options);
  /// What every handle to this model says from now on.
  void take_over(const ParallelModel& other);

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace oslo
