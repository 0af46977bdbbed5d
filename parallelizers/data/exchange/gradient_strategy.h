#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/placement/layout/parameter_layouts.h"

namespace oslo {

/// Gradients that travel together.
struct GradientBucket {
  /// The gradients of `parameters`, one behind the other, each as the parameter lies; behind them
  /// may be numbers of which all ranks need the sum.
  at::Tensor flat;
  c10::ArrayRef<at::Tensor> parameters;
};

/// How gradients get from the data replicas that computed them to those that need them. To add one:
/// a class here, a line in `strategies.cpp`, and who lays gradients so (`set_layouts`).
class GradientStrategy {
 public:
  virtual ~GradientStrategy() = default;

  /// Whether it brings gradients to where `layouts.gradient` says.
  virtual bool serves(const ParameterLayouts& layouts) const = 0;

  /// Begins to add up a bucket over the ranks of `group`; uses the memory of `flat`. The result is
  /// as long: sums, at least where `kept` looks and in the numbers behind. `awaited`: the caller
  /// waits at once.
  virtual Pending start(Group& group, const GradientBucket& bucket, bool awaited) const = 0;

  /// What this rank keeps of one gradient of the result, which is ordinary and lies as the
  /// parameter does: its part by `layouts.gradient`.
  virtual at::Tensor kept(const at::Tensor& gradient, const ParameterLayouts& layouts) const = 0;
};

/// The strategy for gradients that lie as the marks of `parameters` say. Throws an `Error` naming
/// the parameter where there is none.
const GradientStrategy& strategy_for(const std::vector<at::Tensor>& parameters);

}  // namespace oslo
