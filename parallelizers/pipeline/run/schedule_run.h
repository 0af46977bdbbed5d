#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mpu/group/group.h"
#include "mpu/world/world.h"
#include "parallelizers/pipeline/crossing/forward_needs.h"
#include "parallelizers/pipeline/crossing/forward_random.h"
#include "parallelizers/pipeline/run/call_thread.h"
#include "parallelizers/pipeline/run/micro_batch.h"
#include "parallelizers/pipeline/run/step_gradients.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"
#include "parallelizers/pipeline/schedule/timeline/recorder.h"
#include "parallelizers/placement/layout/context.h"
#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

/// The passes of one step on the stages of a model: follows this rank's list of actions. A forward
/// calls the user's function, of which operators of other stages run on shapes; a backward runs
/// one stage's part. Where a rank has several stages the function runs on a thread of its own for
/// each micro-batch: it stops where it comes to a stage that the list has not come to, and goes on
/// there in that stage's forward. Where it has no stages the same lists accumulate gradients
/// on one rank.
class ScheduleRun {
 public:
  /// The models that the step is of.
  struct Models {
    ContextPtr context;
    std::vector<ContextPtr> others;  ///< of all but the first, over the same ranks
    /// The groups in which other ranks may wait for this one. One that fails leaves them at once.
    std::vector<std::shared_ptr<Group>> groups;
    /// What the forwards draw from by a stream for each micro-batch; empty: from the default
    /// generators, one forward after the other.
    std::vector<at::Generator> generators;
  };
  struct Work {
    /// The loss of a micro-batch: one number, placed on a stage where there are several.
    std::function<at::Tensor(int micro_batch)> loss;
    std::vector<double> weights;   ///< of the losses in the step's, by micro-batch
    std::string failures;          ///< where ranks note the first failure of this step
    StepGradients* gradients;      ///< null: the list has no backward passes; nothing is recorded
    pipeline::Recorder* recorder;  ///< notes what this rank does; null: nobody does
    ForwardNeeds needs;            ///< where a rank has several stages
  };

  /// `idle`: where threads come from and go back to, so that steps share them.
  ScheduleRun(Models models, Work work, CallThreads& idle);
  /// Ends the forwards that an error left in the middle.
  ~ScheduleRun();
  ScheduleRun(const ScheduleRun&) = delete;
  ScheduleRun& operator=(const ScheduleRun&) = delete;

  /// Follows the list. What an action throws is thrown on, led by its stage, micro-batch and name,
  /// and by what the first rank that failed said where that is another one.
  void run(const std::vector<pipeline::Action>& actions, const World& world);

  /// The weighted sum of the losses that this rank computed; undefined if it computed none.
  const at::Tensor& loss() const { return loss_; }
  /// The stages that computed some, known to every rank: mostly one.
  StageSet loss_stages() const { return loss_stages_; }
  /// Its type, on every rank.
  const at::TensorOptions& loss_options() const { return loss_options_; }
  /// Messages of the forward passes, of this rank.
  int64_t sent() const { return sent_; }
  /// Forward passes of this rank's stages, each of one stage, that were kept for their backward at
  /// a time, at most: until all of it has run, the weights' part too.
  int peak() const { return peak_; }

  /// Where a rank has several stages: throws on every rank where the forwards of a micro-batch took
  /// different ways on different ranks. One small collective over the stages.
  void check_ways() const;

  /// Runs a part of the step; what it throws is thrown on, led by `place` and the rank, and
  /// followed by what the first rank that failed said. Where the model has stages no other step
  /// follows, and ranks that wait for this one are told at once.
  void named(const std::function<std::string()>& place, const World& world,
             const std::function<void()>& part) const;

 private:
  struct UnderWay {
    std::unique_ptr<MicroBatch> crossings;  ///< null without stages
    std::unique_ptr<ForwardRandom> random;  ///< null where all draw from one
    std::unique_ptr<CallThread> thread;     ///< where this rank has several stages
    at::Tensor loss;                        ///< this rank's, weighted
    int held = 0;                           ///< stages whose backward is to come, or not over
    int loss_stage = 0;
  };

  void act(const pipeline::Action& action);
  void forward(int stage, int micro_batch);
  void call_in_parts(int stage, int micro_batch);
  void resume(int micro_batch);
  void finish_forward(int micro_batch);
  void call_forward(int micro_batch);
  void backward(int stage, int micro_batch);
  void backward_of_weights(int stage, int micro_batch);
  void leave_groups() const;
  bool is_first(int stage) const;
  bool is_last(int stage) const;
  at::Tensor checked_loss(const at::Tensor& loss, int micro_batch);

  bool trains() const { return work_.gradients != nullptr; }

  Models models_;
  const ContextPtr& context_ = models_.context;
  Work work_;
  CallThreads& idle_;
  uint64_t seed_ = 0;  ///< of the micro-batches' streams
  UseOrder uses_;      ///< this rank's, of what forwards write
  std::vector<UnderWay> under_way_;
  std::vector<int64_t> ways_;  ///< of the forwards, by micro-batch
  at::Tensor loss_;
  StageSet loss_stages_;
  at::TensorOptions loss_options_;
  bool splits_ = false;  ///< the list has backward passes in two halves
  int64_t sent_ = 0;
  int in_flight_ = 0, peak_ = 0;
};

}  // namespace oslo
