#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "oslo_cpp/model/parallel_model.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"
#include "parallelizers/stages/stage_map.h"

namespace oslo {

/// The models that a PipelineSchedule trains in one step: mostly one; a generator and its critic,
/// an encoder and a head that were initialized one by one.
class StepModels {
 public:
  /// Throws for none, and for models over other ranks than the first one's: what their values have
  /// in common nobody could say. No communication: the same on all ranks.
  explicit StepModels(std::vector<ParallelModel> models);

  /// The one that says the sizes, the config and the groups, which are those of all.
  const ParallelModel& first() const { return models_.front(); }
  const MPU& mpu() const { return first().mpu(); }
  ContextPtr context() const { return context_of(mpu().tensor_mesh()); }
  /// The contexts of all but the first.
  std::vector<ContextPtr> other_contexts() const;
  /// All that the models have: a rank may wait for others in each.
  std::vector<std::shared_ptr<Group>> groups() const;

  /// Modules, parameters and buffers of all, one model behind the other.
  ModelView view() const;
  /// The distinct parameters that forwards compute with, in one order on all ranks.
  std::vector<at::Tensor> parameters() const;
  /// Those and all buffers.
  std::vector<at::Tensor> tensors() const;
  /// Where those are.
  StageMap stages() const;

  /// What the example of a model that is alone showed of it; null without one. Which of its values
  /// another model computes with no example of its own shows.
  std::shared_ptr<const ForwardSurveys> surveys() const {
    return models_.size() == 1 ? first().surveys() : nullptr;
  }
  /// Whether `initialize` has seen which parameters the step uses on which stages.
  bool know_uses() const { return models_.size() == 1 && first().had_example(); }

  /// Runs `step`, which makes a schedule; what it throws on one rank is thrown on all where the
  /// models have stages, collectively over the world. So is what is wrong with devices: a rank
  /// receives other stages' values on the one that the model was last moved to, and a parameter on
  /// another would wait in the CPU's collectives for ranks that are in the device's.
  void agree_on(const std::function<void()>& step) const;
  /// As DistributedDataParallel does: all tensors at its construction, and buffers, which each
  /// replica may have written (running statistics), before each step. Collective over the data
  /// replicas.
  void take_from_first_replica(bool buffers_only) const;

 private:
  std::vector<ParallelModel> models_;
};

}  // namespace oslo
