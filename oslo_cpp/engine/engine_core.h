#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>

#include "oslo_cpp/engine/batch_cycle.h"
#include "oslo_cpp/engine/batch_share.h"
#include "oslo_cpp/engine/counted_loss.h"
#include "oslo_cpp/model/parallel_model.h"
#include "oslo_cpp/scaling/grad_scaler.h"
#include "oslo_cpp/step/pipeline_options.h"
#include "parallelizers/data/data_parallel_core.h"

namespace oslo {

/// What an Engine does that has nothing to do with the types of its model and criterion.
class EngineCore {
 public:
  /// `replicas`: around the model, whose gradients it averages; null in a pipeline, whose schedule
  /// does. It and the optimizer must outlive this.
  EngineCore(ParallelModel parallel, torch::optim::Optimizer& optimizer, DataParallelCore* replicas,
             std::shared_ptr<const BatchShare> share);

  const ParallelModel& parallel() const { return parallel_; }
  torch::optim::Optimizer& optimizer() const { return optimizer_; }
  /// Null unless the config computes in float16.
  GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }

  void train(bool on) const { parallel_.module()->train(on); }
  /// Before the model runs outside of a schedule: with gradients, the batch that the loop is at now
  /// is the one of the next backward pass. Throws where the config divides batches.
  void forward_begins();
  /// The mean that stands for a counted loss outside of a schedule.
  at::Tensor mean_of(const CountedLoss& loss);
  void backward(const at::Tensor& loss);
  bool step();
  void zero_grad();

  /// One step of a PipelineSchedule: what its losses are multiplied by, and back.
  struct Scheduled {
    double factor = 1;  ///< of a mean over a micro-batch; a counted one has none
    double scale = 1;   ///< of all
    bool counted = false;
    bool trains = false;
  };
  Scheduled schedule_begins(bool trains);
  at::Tensor in_schedule(const at::Tensor& loss, const Scheduled& step);
  /// The loss that the program is shown, from that of the schedule.
  at::Tensor schedule_ends(const StepResult& result, const Scheduled& step);
  /// What the last step of a schedule counted on this data rank; nothing where its loss is a mean.
  const std::optional<double>& last_counted() const { return last_counted_; }

 private:
  void choose_exchange();
  void average_by_handlers();

  ParallelModel parallel_;
  torch::optim::Optimizer& optimizer_;
  DataParallelCore* replicas_;
  std::shared_ptr<const BatchShare> share_;
  std::optional<GradScaler> scaler_;
  BatchCycle cycle_;
  bool by_handlers_;      ///< gradients are averaged in front of a step, not in backward passes
  double weight_ = 1;     ///< of the next backward pass, BatchShare::weight
  bool counted_ = false;  ///< it is of a counted mean
  std::optional<double> last_counted_;
};

}  // namespace oslo
