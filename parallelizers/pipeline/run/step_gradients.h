#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <optional>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/data/exchange/step_exchange.h"
#include "parallelizers/data/sharded/shard_step.h"
#include "parallelizers/pipeline/run/copied_gradients.h"
#include "parallelizers/pipeline/run/stray_gradients.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"
#include "parallelizers/pipeline/schedule/timeline/recorder.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// What a training step does for the gradients of its parameters beside the backward passes: data
/// replicas average them, copies of a parameter on several stages get their sum, and gradients of
/// models that the step is not of are refused. While it lives, gradients of copies from before
/// stand aside.
class StepGradients {
 public:
  /// `parameters`: those of the step's models, in one order on all ranks. `list`: what this rank is
  /// going to do.
  StepGradients(ContextPtr context, Group& replicas, const std::vector<at::Tensor>& parameters,
                const std::vector<pipeline::Action>& list);
  StepGradients(const StepGradients&) = delete;
  StepGradients& operator=(const StepGradients&) = delete;

  /// Whether gradients are averaged over data replicas.
  bool averages() const { return replicas_.size() > 1; }
  const StrayGradients::Parameters& own() const { return own_; }
  /// Is told of the parameters that forwards use.
  StrayGradients& strays() { return strays_; }

  /// An action is about to run. Averages set out in the last one that gives gradients.
  void begins(const pipeline::Action& action);

  /// Behind the passes. Collective over the pipeline and the data replicas.
  void finish(pipeline::Recorder* recorder);

 private:
  ContextPtr context_;
  Group& replicas_;
  StrayGradients::Parameters own_;
  CopiedGradients copied_;
  StepExchange exchange_;
  std::deque<ShardStep> shards_;  ///< of weights that replicas keep parts of
  StrayGradients strays_;
  std::optional<pipeline::Action> last_;  ///< of this rank in which parameters get gradients
};

}  // namespace oslo
