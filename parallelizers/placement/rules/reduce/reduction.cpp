#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <cmath>

#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/reduce/extreme.h"

namespace oslo {
namespace {

/// sum(self, dtype) and sum(self, dims, keepdim, dtype), and mean alike.
Reduced reduction_of(const Call& call, size_t dims_argument) {
  const int64_t dims = call.dim(0);
  if (call.size() <= 2) return {call.dimensions(call.size(), dims), false};
  return {call.dimensions(dims_argument, dims), call.boolean(dims_argument + 1)};
}

/// A sum of what a rank holds is a partial sum. One device adds half precision up in float and
/// rounds once, and so do the ranks together.
void sum(Call& call) {
  Value x = call.value(0);
  const std::string own = letters(x.dim());
  const Reduced over = reduction_of(call, 1);
  const std::string result = reduced(own, over.dims, over.keep);
  const size_t last = call.size() - 1;
  const at::ScalarType type =
      call.none(last) ? x.local.scalar_type() : call.argument(last).toScalarType();
  if (!at::isReducedFloatingType(type)) return call.run({{own}, {result}});
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  if (resolution.axes_beside(result).empty()) return call.run({{own}, {result}});
  std::vector<c10::IValue> arguments = call.arguments().vec();
  arguments[0] = x.local.to(type);
  arguments[last] = at::kFloat;
  Value y = resolution.finish(call.call_with(std::move(arguments))[0].toTensor(), result);
  y.local = y.local.to(type);
  call.result(std::move(y));
}

/// A sum over the ranks' sums, divided by the global count.
void mean(Call& call) {
  Value x = call.value(0);
  const std::string own = letters(x.dim());
  const Reduced over = reduction_of(call, 1);
  double count = 1;
  // A scalar may be averaged over "dimension 0".
  for (const int64_t d : over.dims) count *= x.dim() == 0 ? 1.0 : static_cast<double>(x.size(d));
  std::optional<at::ScalarType> dtype;
  if (!call.none(call.size() - 1)) dtype = call.argument(call.size() - 1).toScalarType();
  const at::ScalarType type = dtype.value_or(x.local.scalar_type());
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type),
              "mean(): input dtype must be floating point or complex, got ", type);
  // Sums of half precision overflow where means do not.
  const bool half = at::isReducedFloatingType(type);
  const std::string result = reduced(own, over.dims, over.keep);
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  Value y = resolution.finish(x.local.sum(over.dims, over.keep, half ? at::kFloat : type) / count,
                              result);
  if (half) y.local = y.local.to(type);
  call.result(std::move(y));
}

/// norm(self, p), norm(self, p, dims, keepdim), linalg_vector_norm(self, p, dims, keepdim, dtype):
/// the p-th root of a sum over ranks. For p that is no sum, over the whole.
void norm(Call& call) {
  Value x = call.value(0);
  const double p = call.none(1) ? 2.0 : call.number(1);
  const bool all = call.size() <= 2;
  const Reduced over{call.dimensions(2, x.dim()), !all && call.boolean(3)};
  if (!(p > 0)) return call.gather("a norm of a special order");
  if (call.size() > 4 && !call.none(4)) x.local = x.local.to(call.argument(4).toScalarType());
  if (std::isinf(p)) {
    if (some_rank_is_empty(x, over.dims)) return call.gather("a rank holds no elements");
    x.local = x.local.abs();
    return call.result(extreme(std::move(x), over, true));
  }
  const std::string own = letters(x.dim());
  const std::string result = reduced(own, over.dims, over.keep);
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  if (resolution.axes_beside(result).empty()) {
    return call.result({at::norm(x.local, p, over.dims, over.keep), resolution.layout_of(result)});
  }
  // The powers of half precision leave its range long before their root does.
  const at::ScalarType type = x.local.scalar_type();
  const at::Tensor wide = x.local.to(at::toOpMathType(type));
  Value powers = resolution.finish(at::norm(wide, p, over.dims, over.keep).pow(p), result);
  // The root of zero has no finite slope; a norm's gradient there is zero.
  const at::Tensor nothing = powers.local.eq(0);
  powers.local = powers.local.masked_fill(nothing, 1)
                     .pow(1.0 / p)
                     .masked_fill(nothing, 0)
                     .to(at::toRealValueType(type));
  call.result(std::move(powers));
}

/// dist(self, other, p), as LibTorch defines it.
void dist(Call& call) {
  call.result_plain(at::norm(call.tensor(0) - call.tensor(1), call.argument(2).toScalar()));
}

/// count_nonzero(self), count_nonzero(self, dims).
void count_nonzero(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  call.run({{own}, {reduced(own, call.dimensions(1, dims), false)}});
}

/// all, any (self), (self, dims, keepdim): of what the ranks found.
template <bool every>
void truth(Call& call) {
  Value x = call.value(0);
  const std::string own = letters(x.dim());
  const bool whole = call.size() == 1;
  // An empty list means no dimension here, not all.
  if (!whole && call.argument(1).isIntList() && call.integers(1).empty()) {
    return call.gather("a reduction of no dimension");
  }
  const Reduced over{call.dimensions(whole ? call.size() : 1, x.dim()), !whole && call.boolean(2)};
  const std::string result = reduced(own, over.dims, over.keep);
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  at::Tensor local = call.call_below({x.local})[0].toTensor();
  const at::ScalarType type = local.scalar_type();
  for (const int axis : resolution.axes_beside(result)) {
    local = reduce_extreme(local.to(at::kInt), resolution.mesh(), axis, !every).to(type);
  }
  call.result({local, resolution.layout_of(result)});
}

/// var, std (self, dims, correction, keepdim), alone or with the mean: along a cut the mean is
/// reduced, then the squared distances from it.
template <bool root, bool with_mean>
void variance(Call& call) {
  Value x = call.value(0);
  if (!x.local.is_floating_point()) return call.gather("a variance of other than real numbers");
  const std::string own = letters(x.dim());
  const Reduced over{call.dimensions(1, x.dim()), call.boolean(3)};
  const std::string result = reduced(own, over.dims, over.keep);
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  const Axes axes = resolution.axes_beside(result);
  if (axes.empty()) return call.run({{own}, {result}});
  double count = 1;
  for (const int64_t d : over.dims) count *= static_cast<double>(x.size(d));
  const at::ScalarType type = x.local.scalar_type();
  const at::Tensor wide = x.local.to(at::toOpMathType(type));
  at::Tensor mean = wide.sum(over.dims, /*keepdim=*/true);
  for (const int axis : axes) mean = reduce_axis(mean, resolution.mesh(), axis);
  mean = mean / count;
  Value own_mean{mean, nullptr};
  for (const int axis : axes) own_mean = copy_axis(own_mean, resolution.mesh(), axis);
  const at::Tensor squares = (wide - own_mean.local).square().sum(over.dims, over.keep);
  const double correction = call.none(2) ? 1.0 : call.number(2);
  Value y = resolution.finish(squares, result);
  y.local = y.local / std::max(0.0, count - correction);
  if (root) {  // of nothing it has no finite slope
    const at::Tensor nothing = y.local.eq(0);
    y.local = y.local.masked_fill(nothing, 1).sqrt().masked_fill(nothing, 0);
  }
  y.local = y.local.to(type);
  call.result(std::move(y));
  if (!with_mean) return;
  if (!over.keep) mean = mean.sum(over.dims);  // one element each
  call.result({mean.to(type), resolution.layout_of(result)});
}

/// prod(self, dtype), prod(self, dim, keepdim, dtype): of the ranks' products, which are gathered:
/// the gradient of each is the product of the others.
void prod(Call& call) {
  Value x = call.value(0);
  const std::string own = letters(x.dim());
  const bool all = call.size() <= 2;
  const Reduced over{call.dimensions(all ? call.size() : 1, x.dim()), !all && call.boolean(2)};
  const std::string result = reduced(own, over.dims, over.keep);
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  const Axes axes = resolution.axes_beside(result);
  if (axes.empty()) return call.run({{own}, {result}});
  std::vector<c10::IValue> arguments = call.arguments().vec();
  const at::ScalarType type = call.none(call.size() - 1)
                                  ? x.local.scalar_type()
                                  : call.argument(call.size() - 1).toScalarType();
  arguments[0] = x.local;
  // One device rounds a product of half precision once.
  if (at::isReducedFloatingType(type)) arguments.back() = at::kFloat;
  at::Tensor product = call.call_with(std::move(arguments))[0].toTensor();
  for (const int axis : axes) {
    const auto& group = resolution.mesh().axis(axis);
    const std::vector<int64_t> one_a_rank(group->size(), 1);
    product = gather_from(product.unsqueeze(0), group, 0, one_a_rank).prod(0);
  }
  if (at::isReducedFloatingType(type)) product = product.to(type);
  call.result({product, resolution.layout_of(result)});
}

/// logsumexp(self, dims, keepdim): along a cut the largest is reduced, then the sum of exponentials
/// of what each element is below it.
void logsumexp(Call& call) {
  Value x = call.value(0);
  const std::string own = letters(x.dim());
  const Reduced over{call.dimensions(1, x.dim()), call.boolean(2)};
  const std::string result = reduced(own, over.dims, over.keep);
  const at::ScalarType type = x.local.scalar_type();
  if (!at::isFloatingType(type)) return call.run({{own}, {result}, letters_at(own, over.dims)});
  const Resolution resolution = resolve({{own}, {result}}, std::span(&x, 1));
  const Axes axes = resolution.axes_beside(result);
  if (axes.empty()) return call.run({{own}, {result}});
  const at::Tensor wide = x.local.to(at::toOpMathType(type));
  at::Tensor largest = largest_on_axes(wide, over.dims, resolution.mesh(), axes);
  largest.masked_fill_(largest.isinf(), 0);  // an infinite one is no measure for the others
  at::Tensor sum = (wide - largest).exp().sum(over.dims, over.keep);
  for (const int axis : axes) sum = reduce_axis(sum, resolution.mesh(), axis);
  const at::Tensor local = sum.log() + largest.reshape(sum.sizes());
  call.result({local.to(type), resolution.layout_of(result)});
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table.add({"aten::sum", "aten::sum.dim_IntList", "aten::nansum"}, sum);
  table.add({"aten::mean", "aten::mean.dim"}, mean);
  table.add({"aten::norm.Scalar", "aten::norm.ScalarOpt_dim", "aten::linalg_vector_norm"}, norm);
  table.add({"aten::dist"}, dist);
  table.add({"aten::count_nonzero", "aten::count_nonzero.dim_IntList"}, count_nonzero);
  table.add({"aten::all", "aten::all.dim", "aten::all.dims"}, truth<true>);
  table.add({"aten::any", "aten::any.dim", "aten::any.dims"}, truth<false>);
  table.add({"aten::var.correction"}, variance<false, false>);
  table.add({"aten::std.correction"}, variance<true, false>);
  table.add({"aten::var_mean.correction"}, variance<false, true>);
  table.add({"aten::std_mean.correction"}, variance<true, true>);
  table.add({"aten::prod", "aten::prod.dim_int"}, prod);
  table.add({"aten::logsumexp"}, logsumexp);
}

}  // namespace oslo
