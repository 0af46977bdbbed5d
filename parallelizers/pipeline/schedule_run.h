#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mpu/mesh.h"
#include "mpu/stage_set.h"
#include "mpu/world.h"
#include "parallelizers/pipeline/micro_batch.h"
#include "parallelizers/pipeline/schedule/recorder.h"
#include "parallelizers/pipeline/schedule/schedule.h"

namespace oslo {

/// One step of a model on the stages of `mesh`: follows this rank's list of actions. A forward
/// calls the user's function, of which operators of other stages run on shapes; a backward runs
/// this stage's part. Where the mesh has no stages the same lists accumulate gradients on one rank.
class ScheduleRun {
 public:
  struct Work {
    /// The loss of a micro-batch: one number, placed on a stage where there are several.
    std::function<at::Tensor(int micro_batch)> loss;
    std::vector<double> weights;  ///< of the losses in the step's, by micro-batch
    bool forward_only = false;    ///< the list has no backward passes; nothing is recorded
    std::string step;             ///< for errors: which step of the world's it is
    pipeline::Recorder* recorder = nullptr;  ///< notes what this rank does, if there is one
  };

  ScheduleRun(MeshPtr mesh, Work work);

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
  /// Forward passes that were under way at a time, at most.
  int peak() const { return peak_; }

  /// Runs a part of the step; what it throws is thrown on, led by `place` and the rank, and
  /// followed by what the first rank that failed in this step said.
  void named(const std::function<std::string()>& place, const World& world,
             const std::function<void()>& part) const;

 private:
  struct UnderWay {
    std::unique_ptr<MicroBatch> crossings;  ///< null without stages
    at::Tensor loss;                        ///< this rank's, weighted
  };

  void act(const pipeline::Action& action);
  void forward(int micro_batch);
  void backward(int micro_batch);
  at::Tensor checked_loss(const at::Tensor& loss, int micro_batch);

  MeshPtr mesh_;
  Work work_;
  std::vector<UnderWay> under_way_;
  at::Tensor loss_;
  StageSet loss_stages_;
  at::TensorOptions loss_options_;
  int64_t sent_ = 0;
  int in_flight_ = 0, peak_ = 0;
};

}  // namespace oslo
