#pragma once

#include "parallelizers/data/exchange/gradient_strategy.h"

namespace oslo {

/// Every replica gets all of every gradient.
class AllReduceGradients final : public GradientStrategy {
 public:
  bool serves(const ParameterLayouts& layouts) const override;
  Pending start(Group& group, const GradientBucket& bucket, bool awaited) const override;
  at::Tensor kept(const at::Tensor& gradient, const ParameterLayouts& layouts) const override;
};

}  // namespace oslo
