#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "mpu/group/group.h"

namespace oslo {

/// The exchange of a step's gradients over data replicas, once: in flat buckets, the last
/// parameters first. A bucket whose gradients are there sets out while the last backward pass of
/// the step goes on, as in LibTorch's Reducer (Li et al. 2020, arXiv 2006.15704); the last bucket,
/// of a small model the only one, is waited for at once.
///
/// A replica whose gradient is undefined counts as zeros; where it is undefined on all it stays so.
/// A sparse gradient becomes a dense one: replicas looked up other rows. Parameters that require no
/// gradient, those that another pipeline stage holds, and those that replicas keep parts of, which
/// average themselves, are passed over. Ranks of the group have
/// copies of the parameters (or the same parts), in one order. In a group of one rank nothing
/// happens.
///
/// Costs a copy of the gradients, and a hook for each parameter during the last pass. One thread at
/// a time, of which the backward pass may be another.
class StepExchange {
 public:
  static constexpr int64_t kBucketBytes = 25 * 1024 * 1024;

  /// A bucket is full at `bucket_bytes` or more.
  StepExchange(Group& group, const std::vector<at::Tensor>& parameters,
               int64_t bucket_bytes = kBucketBytes);
  ~StepExchange();
  StepExchange(const StepExchange&) = delete;
  StepExchange& operator=(const StepExchange&) = delete;

  /// The backward pass that begins now gives each parameter at most one gradient, the last of this
  /// step; to those of which `comes` says no it gives none. A second one, which a bucket that has
  /// set out would lack, is an error.
  void last_pass_begins(const std::function<bool(const at::Tensor& parameter)>& comes);

  /// Replaces the gradients by their averages. Collective over the group.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;  ///< null in a group of one
};

}  // namespace oslo
