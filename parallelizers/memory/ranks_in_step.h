#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Ranks that come to a model's layers together with this one, so that they can agree at one of
/// them: those of its tensor axes, and data replicas where these gather weights. Replicas that read
/// weights where they lie may call other layers, and would wait for each other.
class RanksInStep {
 public:
  /// Those that run an operator on `arguments`, of which one at least is a model's value.
  explicit RanksInStep(c10::ArrayRef<c10::IValue> arguments);

  /// The same on all of them. Collective over them.
  at::Tensor all_reduce(at::Tensor values, Reduction reduction = Reduction::sum) const;
  /// Whether there is none but this one.
  bool alone() const { return groups_.empty(); }
  /// The model's, on a pipeline.
  at::Device device() const { return context_->device(); }

 private:
  ContextPtr context_;
  std::vector<std::shared_ptr<Group>> groups_;
};

}  // namespace oslo
