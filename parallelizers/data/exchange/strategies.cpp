#include <ATen/ATen.h>

#include <array>

#include "mpu/base/error.h"
#include "parallelizers/data/exchange/all_reduce_gradients.h"
#include "parallelizers/data/exchange/gradient_strategy.h"
#include "parallelizers/data/exchange/reduce_scatter_gradients.h"
#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

namespace {

const ReduceScatterGradients& reduce_scatter() {
  static const ReduceScatterGradients strategy;
  return strategy;
}

const AllReduceGradients& all_reduce() {
  static const AllReduceGradients strategy;
  return strategy;
}

}  // namespace

const GradientStrategy& strategy_for(const GradientBucket& bucket) {
  if (bucket.of_rank.empty()) return all_reduce();
  return reduce_scatter();
}

const GradientStrategy& strategy_for(const at::Tensor& parameter) {
  static const std::array<const GradientStrategy*, 2> known{&reduce_scatter(), &all_reduce()};
  for (const GradientStrategy* const each : known) {
    if (each->serves(parameter)) return *each;
  }
  const ParameterLayouts layouts = layouts_of(parameter);
  fail("no strategy leaves the gradient of ", mark_of(parameter)->name, " as (",
       layouts.gradient->to_string(), "), of a parameter that lies as (",
       layouts.parameter->to_string(), "); lay both alike (oslo::set_layouts)");
}

bool has_new_gradient(const at::Tensor& parameter) {
  return parameter.grad().defined() && !has_part(parameter);
}

std::vector<bool> had_by_any(const at::Tensor& result, int64_t count) {
  const at::Tensor ranks =
      result.narrow(0, result.numel() - count, count).to(at::kCPU, at::kDouble);
  std::vector<bool> had;
  for (int64_t i = 0; i < count; ++i) had.push_back(ranks.const_data_ptr<double>()[i] > 0);
  return had;
}

}  // namespace oslo
