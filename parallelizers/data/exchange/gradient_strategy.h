#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/placement/layout/parameter_layouts.h"

namespace oslo {

/// Gradients that travel together.
struct GradientBucket {
  /// The gradients of `parameters`, one behind the other, each as the parameter lies; behind them
  /// may be numbers of which all ranks need the sum. Or what `GradientStrategy::pack` made.
  at::Tensor flat;
  c10::ArrayRef<at::Tensor> parameters;
  /// Where each rank is to get a stretch of it: how long these are.
  std::vector<int64_t> of_rank = {};
};

/// How gradients get from the data replicas that computed them to those that need them. To add one:
/// a class here, a line in `strategies.cpp`, and who lays gradients so (`set_layouts`).
class GradientStrategy {
 public:
  virtual ~GradientStrategy() = default;

  /// Whether it brings the gradient of `parameter` to where its layout says.
  virtual bool serves(const at::Tensor& parameter) const = 0;

  /// The gradients that the parameters have now, zeros where there is none, and nothing of what was
  /// exchanged before. `asks`: with them, for each parameter, how many ranks have one.
  virtual GradientBucket pack(Group& group, c10::ArrayRef<at::Tensor> parameters,
                              bool asks) const = 0;

  /// Begins to add up a bucket over the ranks of `group`; uses the memory of `flat`. `awaited`: the
  /// caller waits at once.
  virtual Pending start(Group& group, const GradientBucket& bucket, bool awaited) const = 0;

  /// Leaves of the sums what this rank keeps in `.grad`, of the parameters that any rank has a
  /// gradient of: those which `had` says, of which `result` knows if it was asked.
  virtual void unpack(Group& group, const at::Tensor& result, c10::ArrayRef<at::Tensor> parameters,
                      std::vector<bool> had, bool asked) const = 0;
};

/// Of the numbers behind what was added up: for each of `count` parameters, whether any rank has a
/// gradient of it.
std::vector<bool> had_by_any(const at::Tensor& result, int64_t count);

/// The strategy for a gradient that lies as the marks of `parameter` say. Throws an `Error` naming
/// the parameter where there is none.
const GradientStrategy& strategy_for(const at::Tensor& parameter);
/// Of a bucket, whoever packed it: every replica gets all of it, or its stretch.
const GradientStrategy& strategy_for(const GradientBucket& bucket);

/// Whether there is a gradient that has not been exchanged.
bool has_new_gradient(const at::Tensor& parameter);

}  // namespace oslo
