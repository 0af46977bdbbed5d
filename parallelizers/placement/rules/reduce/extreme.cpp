#include "parallelizers/placement/rules/reduce/extreme.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <limits>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

at::Tensor local_extreme(const at::Tensor& part, const Reduced& over, bool largest) {
  return largest ? part.amax(over.dims, over.keep) : part.amin(over.dims, over.keep);
}

/// `extreme`, which this rank's `part` had a share in, with a gradient for each element that is
/// equal to it. Shares are rounded: their sum has the gradient, and `extreme` the number.
at::Tensor with_gradient(const at::Tensor& extreme, const at::Tensor& part, const Reduced& over,
                         const Mesh& mesh, const Axes& axes) {
  at::Tensor others, count;
  {
    const c10::AutoGradMode no_grad(false);
    others = part.ne(extreme);
    count = others.logical_not().sum(over.dims, /*keepdim=*/true);
    for (const int axis : axes) count = reduce_axis(count, mesh, axis);
  }
  at::Tensor sum =
      (part.masked_fill(others, 0) / count).sum(over.dims, over.keep, part.scalar_type());
  for (const int axis : axes) sum = reduce_axis(sum, mesh, axis);
  at::Tensor rounding;
  {
    const c10::AutoGradMode no_grad(false);
    rounding = extreme.reshape(sum.sizes()) - sum;
    rounding.masked_fill_(rounding.isfinite().logical_not(), 0);
  }
  return sum + rounding;
}

template <bool largest>
void extreme_over(Call& call) {
  const Value x = call.value(0);
  const Reduced over{call.dimensions(1, x.dim()), call.boolean(2)};
  if (some_rank_is_empty(x, over.dims)) return call.gather("a rank holds no elements");
  call.result(extreme(x, over, largest));
}

template <bool largest>
void extreme_of_all(Call& call) {
  const Value x = call.value(0);
  const Reduced over{call.dimensions(call.size(), x.dim()), false};
  if (some_rank_is_empty(x, over.dims)) return call.gather("a rank holds no elements");
  call.result(extreme(x, over, largest));
}

}  // namespace

bool some_rank_is_empty(const Value& x, const std::vector<int64_t>& reduced_dims) {
  for (const int64_t dim : reduced_dims) {
    for (const int axis : x.axes_cutting(dim)) {
      if ((*x.layout)[axis].cut->leaves_a_rank_empty()) return true;
    }
  }
  return false;
}

Value extreme(Value x, const Reduced& over, bool largest) {
  const std::string own = letters(x.dim());
  const std::string result = reduced(own, over.dims, over.keep);
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  const Axes axes = resolution.axes_beside(result);
  if (axes.empty()) return {local_extreme(x.local, over, largest), resolution.layout_of(result)};
  const bool records = c10::GradMode::is_enabled() && x.local.requires_grad();
  const Reduced kept{over.dims, records || over.keep};
  at::Tensor local;
  {
    const c10::AutoGradMode no_grad(false);
    local = local_extreme(x.local, kept, largest);
    for (const int axis : axes) local = reduce_extreme(local, resolution.mesh(), axis, largest);
  }
  if (records) local = with_gradient(local, x.local, over, resolution.mesh(), axes);
  return {local, resolution.layout_of(result)};
}

at::Tensor largest_on_axes(const at::Tensor& part, c10::IntArrayRef dims, const Mesh& mesh,
                           const Axes& axes) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor largest =
      part.numel() > 0
          ? part.amax(dims, /*keepdim=*/true)
          : part.sum(dims, /*keepdim=*/true).fill_(-std::numeric_limits<double>::infinity());
  for (const int axis : axes) largest = reduce_extreme(largest, mesh, axis, /*largest=*/true);
  return largest;
}

void add_extreme_rules(RuleTable& table) {
  table.add({"aten::amax"}, extreme_over<true>);
  table.add({"aten::amin"}, extreme_over<false>);
  table.add({"aten::max"}, extreme_of_all<true>);
  table.add({"aten::min"}, extreme_of_all<false>);
}

}  // namespace oslo
