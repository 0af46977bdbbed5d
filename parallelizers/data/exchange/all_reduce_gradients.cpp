#include "parallelizers/data/exchange/all_reduce_gradients.h"

#include <ATen/ATen.h>

#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// As many elements as this rank's part of it has.
at::Tensor flat_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) {
    return at::zeros({parameter.numel()},
                     at::TensorOptions(gradient_type(parameter)).device(parameter.device()));
  }
  return (gradient.is_sparse() ? gradient.to_dense() : plain_values(gradient)).reshape({-1});
}

void set_gradient(const at::Tensor& parameter, const at::Tensor& average) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && !gradient.is_sparse()) {
    plain_values(gradient).copy_(average.view(gradient.sizes()));
  } else {
    gradient = average.view(parameter.sizes()).clone();
  }
}

}  // namespace

bool AllReduceGradients::serves(const at::Tensor& parameter) const {
  const ParameterLayouts layouts = layouts_of(parameter);
  return layouts.gradient == layouts.parameter || *layouts.gradient == *layouts.parameter;
}

GradientBucket AllReduceGradients::pack(Group& /*group*/, c10::ArrayRef<at::Tensor> parameters,
                                        bool asks) const {
  std::vector<at::Tensor> flat;
  std::vector<double> have;
  for (const at::Tensor& parameter : parameters) {
    flat.push_back(flat_gradient(parameter));
    have.push_back(parameter.grad().defined() ? 1 : 0);
  }
  // A tensor of doubles first: of halves it makes none.
  if (asks) flat.push_back(at::tensor(have).to(flat.front().options()));
  return {at::cat(flat), parameters};
}

Pending AllReduceGradients::start(Group& group, const GradientBucket& bucket, bool awaited) const {
  return awaited ? Pending(group.all_reduce(bucket.flat)) : group.start_all_reduce(bucket.flat);
}

void AllReduceGradients::unpack(Group& /*group*/, const at::Tensor& result,
                                c10::ArrayRef<at::Tensor> parameters, std::vector<bool> had,
                                bool asked) const {
  if (asked) had = had_by_any(result, static_cast<int64_t>(parameters.size()));
  int64_t start = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const at::Tensor own = result.narrow(0, start, parameter.numel());
    start += parameter.numel();
    if (!had[i]) continue;
    set_gradient(parameter, own);
    if (mark_of(parameter) != nullptr) mark_gradient(parameter.grad(), parameter);
  }
}

}  // namespace oslo
