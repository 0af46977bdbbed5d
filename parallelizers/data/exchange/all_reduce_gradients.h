#pragma once

#include "parallelizers/data/exchange/gradient_strategy.h"

namespace oslo {

/// Every replica gets all of every gradient. `Pending`'s result is as long as the bucket.
class AllReduceGradients final : public GradientStrategy {
 public:
  bool serves(const at::Tensor& parameter) const override;
  GradientBucket pack(Group& group, c10::ArrayRef<at::Tensor> parameters, bool asks) const override;
  Pending start(Group& group, const GradientBucket& bucket, bool awaited) const override;
  void unpack(Group& group, const at::Tensor& result, c10::ArrayRef<at::Tensor> parameters,
              std::vector<bool> had, bool asked) const override;
};

}  // namespace oslo
