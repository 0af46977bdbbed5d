#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "mpu/group/group.h"
#include "oslo_cpp/step/step_models.h"
#include "parallelizers/data/counted_gradients.h"
#include "parallelizers/data/counted_mean.h"

namespace oslo {

/// What the micro-batches of one step count, of which the losses are sums (counted_step.h).
/// Forwards of several may be under way, each on a thread of its own, of which one runs at a time.
class StepCounts {
 public:
  /// `weights`: by which the losses of micro-batches are multiplied in the step's. `gradients`: of
  /// the models, from step to step; made at the first use. Null: the step does not train.
  StepCounts(Group& replicas, std::vector<double> weights,
             std::shared_ptr<CountedGradients>* gradients, const StepModels& models);

  /// While it lives, this thread runs the loss function of a micro-batch of a schedule; -1: on
  /// shapes, to find out what it does.
  class Scope {
   public:
    Scope(const void* schedule, StepCounts* counts, int micro_batch);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class StepCounts;
    const void* const schedule_;
    StepCounts* const counts_;
    const int micro_batch_;
    int calls_ = 0;
    Scope* const outer_;
  };

  /// What stands for `loss_sum` in the loss of the micro-batch that this thread runs. Throws
  /// outside of the schedule's loss function.
  static at::Tensor in_loss(const void* schedule, const at::Tensor& loss_sum, const Count& count,
                            const std::optional<Count>& step_count);

  /// Before gradients are touched.
  void begin();
  /// Behind the exchange of gradients: divides them by all counts. From this replica's loss of the
  /// step, the step's; unchanged where nothing was counted. Collective over the data replicas.
  at::Tensor end(const at::Tensor& loss);
  /// Behind it: what this replica's micro-batches count, where they do.
  const std::optional<double>& counted() const { return counted_; }

 private:
  at::Tensor add(const at::Tensor& loss_sum, double count, int micro_batch);
  at::Tensor add_whole(const at::Tensor& loss_sum, double count, double step_count, int micro_batch,
                       size_t call);
  CountedGradients& gradients();
  double of_replicas(double own, const char* what);

  Group& replicas_;
  std::vector<double> weights_;
  std::shared_ptr<CountedGradients>* gradients_;
  const StepModels& models_;
  std::vector<std::optional<double>> counts_;  ///< by micro-batch
  std::optional<double> counted_;
  struct Whole {
    double own, all;
  };
  std::vector<Whole> whole_;  ///< counts of the step, by the calls of a loss function
};

}  // namespace oslo
