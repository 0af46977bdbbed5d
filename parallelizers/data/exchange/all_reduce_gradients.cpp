#include "parallelizers/data/exchange/all_reduce_gradients.h"

namespace oslo {

bool AllReduceGradients::serves(const ParameterLayouts& layouts) const {
  return layouts.gradient == layouts.parameter || *layouts.gradient == *layouts.parameter;
}

Pending AllReduceGradients::start(Group& group, const GradientBucket& bucket, bool awaited) const {
  return awaited ? Pending(group.all_reduce(bucket.flat)) : group.start_all_reduce(bucket.flat);
}

at::Tensor AllReduceGradients::kept(const at::Tensor& gradient,
                                    const ParameterLayouts& /*layouts*/) const {
  return gradient;
}

}  // namespace oslo
