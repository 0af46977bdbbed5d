#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/data/exchange/gradient_strategy.h"

namespace oslo {

/// The averages of gradients over data replicas: of these parameters, over this group, by the
/// strategy that their layouts ask for. What is done with a bucket is here, and counted in the
/// group's ledger; when a bucket's gradients are there, its two owners know: `PassExchange`, of
/// every backward pass (DistributedDataParallel), and `StepExchange`, once a step
/// (PipelineSchedule).
class GradientExchange {
 public:
  /// `rule`: what the ledger counts under; it lives as long as the program. Throws an `Error` where
  /// no strategy brings gradients to where their layouts say.
  GradientExchange(Group& group, const std::vector<at::Tensor>& parameters, const char* rule)
      : group_(group), strategy_(strategy_for(parameters)), rule_(rule) {}

  Group& group() const { return group_; }

  /// Begins to average a bucket; uses the memory of its `flat`. The result is as long, and so far
  /// as the strategy leaves it to this rank. `awaited`: the caller waits at once.
  Pending start(const GradientBucket& bucket, bool awaited = false) const;

  /// Behind the exchange, when a parameter's `.grad` has its share of the result or is undefined:
  /// leaves there what the strategy leaves to this rank, with its mark if the parameter has one.
  void keep(const at::Tensor& parameter) const;

 private:
  Group& group_;
  const GradientStrategy& strategy_;
  const char* rule_;
};

/// The type that the config has gradients of `type` travel in over `group`: its own, or a narrower
/// one.
c10::ScalarType travel_type(Group& group, c10::ScalarType type);

/// Which of `parameters` travel together, by their numbers: of one type and device, the last ones
/// first, which is about the order in which their gradients come. A bucket is full at `bytes` or
/// more, the first of each kind at `first_bytes`.
std::vector<std::vector<size_t>> gradient_buckets(const std::vector<at::Tensor>& parameters,
                                                  int64_t first_bytes, int64_t bytes);

}  // namespace oslo
