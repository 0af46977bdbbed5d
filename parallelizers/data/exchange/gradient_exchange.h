#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/data/exchange/gradient_strategy.h"

namespace oslo {

/// The averages of gradients over data replicas: of these parameters, over this group, by the
/// strategies that their layouts ask for. What is done with a bucket is here, and counted in the
/// group's ledger; when a bucket's gradients are there, its owners know: `PassExchange` and
/// `SharedPassExchange`, of every backward pass (DistributedDataParallel), and `StepExchange`, once
/// a step (PipelineSchedule).
class GradientExchange {
 public:
  /// `rule`: what the ledger counts under; it lives as long as the program. Throws an `Error` where
  /// no strategy brings gradients to where their layouts say.
  GradientExchange(Group& group, const std::vector<at::Tensor>& parameters, const char* rule);

  Group& group() const { return group_; }

  /// Begins to average a bucket whose parameters ask for one strategy; uses the memory of its
  /// `flat`. `awaited`: the caller waits at once.
  Pending start(const GradientBucket& bucket, bool awaited = false) const;

 private:
  Group& group_;
  const char* rule_;
};

/// Gradients that travel together, from `.grad` to the other replicas and back. Outside of autograd
/// and below the door.
class BucketExchange {
 public:
  /// `asks`: ranks may lack gradients. One that is undefined counts as zeros; where it is undefined
  /// on all it stays so. Without it all ranks have, or lack, the same.
  BucketExchange(const GradientExchange& exchange, std::vector<at::Tensor> parameters, bool asks)
      : exchange_(exchange), parameters_(std::move(parameters)), asks_(asks) {}

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  bool under_way() const { return under_way_.has_value(); }
  /// `awaited`: `finish` comes at once.
  void start(bool awaited = false);
  /// What `start` began.
  void finish();

 private:
  GradientExchange exchange_;
  std::vector<at::Tensor> parameters_;
  bool asks_;
  std::vector<bool> had_;
  std::optional<Pending> under_way_ = {};
};

/// Which of `parameters` travel together, by their numbers: of one type, device and strategy, the
/// last ones first, which is about the order in which their gradients come. A bucket is full at
/// `bytes` or more, the first of each kind at `first_bytes`.
std::vector<std::vector<size_t>> gradient_buckets(const std::vector<at::Tensor>& parameters,
                                                  int64_t first_bytes, int64_t bytes);

}  // namespace oslo
