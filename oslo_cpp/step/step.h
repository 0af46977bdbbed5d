#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "oslo_cpp/step/pipeline_options.h"
#include "oslo_cpp/step/step_counts.h"
#include "oslo_cpp/step/step_models.h"
#include "parallelizers/pipeline/crossing/forward_needs.h"
#include "parallelizers/pipeline/run/call_thread.h"
#include "parallelizers/pipeline/run/schedule_run.h"
#include "parallelizers/pipeline/run/split_batch.h"
#include "parallelizers/pipeline/run/step_gradients.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"
#include "parallelizers/pipeline/schedule/timeline/recorder.h"

namespace oslo {

/// What a PipelineSchedule keeps from one step to the next.
struct StepHistory {
  StepModels models;
  pipeline::Schedule schedule, evaluation;
  bool knows_uses;                  ///< which parameters forwards use on which stages
  std::set<bool> knows_needs = {};  ///< of forwards with a backward, without
  ForwardNeeds needs = {};          ///< of both
  CallThreads threads = {};         ///< idle ones
  int64_t steps = 0;
  std::shared_ptr<CountedGradients> counted = {};  ///< where a step has counted
};

/// One step of a PipelineSchedule, from the batch to its result. Collective over all ranks of the
/// models.
class Step {
 public:
  using Tensors = std::vector<at::Tensor>;
  using LossFunction = std::function<at::Tensor(const Tensors& micro_batch)>;

  /// All arguments must outlive it.
  Step(StepHistory& history, const Tensors& batch, const LossFunction& loss,
       const StepOptions& options);

  StepResult take();

 private:
  // The stages of a step, in their order.
  void divide();
  void learn_uses();
  void prepare_gradients();
  void run();
  void average();
  void share_loss();
  StepResult result() const;

  void at_end(const std::function<void()>& part) const;
  void share_used_parameters(const std::function<void()>& forward);
  void learn_needs(const std::function<void()>& forward);
  void start_recorder();
  at::Tensor loss_of(int micro_batch);
  std::vector<at::Generator> streams() const;
  std::vector<pipeline::Action> list_of_rank() const;
  std::string failures_of(int number) const;

  const MPU& mpu() const { return history_.models.mpu(); }
  ContextPtr context() const { return history_.models.context(); }
  pipeline::Recorder* notes() { return recorder_ ? &*recorder_ : nullptr; }

  StepHistory& history_;
  const Tensors& batch_;
  const LossFunction& loss_;
  const StepOptions& options_;
  const bool trains_;
  MicroBatches micro_batches_;
  std::vector<pipeline::Action> list_;  ///< this rank's
  std::optional<StepCounts> counts_;
  std::optional<StepGradients> gradients_;  ///< of a step that trains
  std::optional<pipeline::Recorder> recorder_;
  std::optional<ScheduleRun> run_;
  at::Tensor loss_everywhere_;
};

}  // namespace oslo
