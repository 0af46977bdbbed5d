#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>

#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"
#include "parallelizers/placement/rules/reduce/channels.h"
#include "parallelizers/placement/rules/reduce/extreme.h"

namespace oslo {
namespace {

/// Along a dimension that is whole.
void softmax_of_rows(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const std::string along = dims == 0 ? "" : std::string(1, own[call.dimension(1, dims)]);
  call.run({{own}, {own}, along});
}

enum class Softmax {
  plain,
  logarithm,
  safe  ///< of a row in which everything is minus infinity: zeros
};

/// (log_)softmax(self, dim, dtype), _(log_)softmax(self, dim, half to float) along a cut: two
/// numbers a row are reduced, its largest and the sum of exponentials, and what is cut stays so
/// (for a loss of cut classes, as in Megatron-LM).
void softmax_along_cut(Call& call, Softmax kind) {
  Value x = call.value(0);
  const int64_t dim = x.dim() == 0 ? 0 : call.dimension(1, x.dim());
  if (!x.cut_at(dim) || x.size(dim) == 0) return softmax_of_rows(call);
  const bool widens = call.argument(2).isBool() && call.boolean(2);
  at::ScalarType type = x.local.scalar_type();
  if (widens) type = at::kFloat;
  if (!call.argument(2).isBool() && !call.none(2)) type = call.argument(2).toScalarType();
  TORCH_CHECK(at::isFloatingType(type), call.name(), ": not defined for ", type);
  const std::string own = letters(x.dim());
  const Resolution resolution = resolve({{own}, {own}}, std::span(&x, 1));
  const Axes axes = resolution.axes_keeping({&own[dim], 1});
  const ContextPtr& context = resolution.context();
  const at::Tensor part = x.local.to(at::isReducedFloatingType(type) ? at::kFloat : type);
  at::Tensor largest = largest_on_axes(part, dim, context->mesh(), axes);
  if (kind == Softmax::safe) {
    largest.masked_fill_(largest.eq(-std::numeric_limits<double>::infinity()), 0);
  }
  const at::Tensor shifted = part - largest;
  const at::Tensor exponentials = shifted.exp();
  at::Tensor total = exponentials.sum(dim, /*keepdim=*/true);
  for (const int axis : axes) total = reduce_and_copy(total, context->mesh(), axis);
  if (kind == Softmax::safe) total = total.masked_fill(total.eq(0), 1);
  const at::Tensor result =
      kind == Softmax::logarithm ? shifted - total.log() : exponentials / total;
  call.result({result.to(type), resolution.layout_of(own)});
}

/// Of a row, three all-reduces of a number (forward and backward) move as much as a gather of six.
/// Shorter ones are gathered: few choices, of which a program then picks one by one.
constexpr int64_t kShortRow = 6;

template <Softmax kind>
void softmax(Call& call) {
  const int64_t dims = call.dim(0);
  if (dims == 0 || call.value(0).size(call.dimension(1, dims)) < kShortRow) {
    return softmax_of_rows(call);
  }
  softmax_along_cut(call, kind);
}

void log_softmax(Call& call) {
  softmax_along_cut(call, Softmax::logarithm);
}

/// The mean of local parts over the last dimensions, of global sizes `shape`: on every rank of the
/// axes, which each go on to use it.
at::Tensor mean_over(const at::Tensor& tensor, const std::vector<int64_t>& shape, const Axes& axes,
                     const ContextPtr& context) {
  std::vector<int64_t> along;
  double count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    along.push_back(tensor.dim() - static_cast<int64_t>(i) - 1);
    count *= static_cast<double>(shape[i]);
  }
  at::Tensor sum = tensor.sum(along, /*keepdim=*/true);
  for (const int axis : axes) sum = reduce_and_copy(sum, context->mesh(), axis);
  return sum / count;
}

/// Local parts less that mean. Numbers far from zero keep their digits: each rank takes its own
/// mean out first, and the ranks' means are merged in float64, weighed by how many they are of
/// (Chan, Golub and LeVeque 1979, Welford's for groups).
at::Tensor less_mean(const at::Tensor& tensor, const std::vector<int64_t>& shape, const Axes& axes,
                     const ContextPtr& context) {
  std::vector<int64_t> along;
  double count = 1, own_count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    along.push_back(tensor.dim() - static_cast<int64_t>(i) - 1);
    count *= static_cast<double>(shape[i]);
    own_count *= static_cast<double>(tensor.size(along.back()));
  }
  at::Tensor own;
  {
    const c10::AutoGradMode no_grad(false);
    own = tensor.sum(along, /*keepdim=*/true) / std::max(own_count, 1.0);
  }
  const at::Tensor off = tensor - own, far = own.to(at::kDouble);
  at::Tensor sum = far * own_count + off.sum(along, /*keepdim=*/true).to(at::kDouble);
  for (const int axis : axes) sum = reduce_and_copy(sum, context->mesh(), axis);
  return off + (far - sum / count).to(tensor.scalar_type());
}

/// x (.., H), weight and bias (H) or absent. Where H is cut (2D), mean and variance are reduced
/// over the axis, forward and backward. The kernel below it, native_layer_norm, returns them.
void layer_norm(Call& call) {
  const Value x = call.value(0);
  const std::vector<int64_t> shape = call.integers(1);
  const bool has_weight = call.value(2).defined(), has_bias = call.value(3).defined();
  const bool returns_statistics = call.op().schema->returns().size() > 1;
  const double eps = call.number(4);
  const auto inner = static_cast<int64_t>(shape.size());
  for (int64_t i = 0; i < inner; ++i) {
    const int64_t dim = x.dim() - inner + i;
    if (dim < 0 || x.size(dim) != shape[i]) throw ShapeMismatch("layer_norm: other shape");
  }
  const std::string all = letters(x.dim());
  const std::string normalized = all.substr(all.size() - shape.size());
  const std::string rows =
      all.substr(0, all.size() - shape.size()) + std::string(shape.size(), '-');
  c10::SmallVector<Value, 3> operands{x};
  DimensionMap map{{all}, {all}};
  for (const Value& affine : {call.value(2), call.value(3)}) {
    if (!affine.defined()) continue;
    operands.push_back(affine);
    map.operands.push_back(normalized);
  }
  const Resolution resolution = resolve(map, operands);
  const at::Tensor& local = operands[0].local;
  const at::Tensor weight = has_weight ? operands[1].local : at::Tensor();
  const at::Tensor bias = has_bias ? operands[has_weight ? 2 : 1].local : at::Tensor();
  const Axes axes = resolution.axes_keeping(normalized);
  if (axes.empty()) {
    std::vector<c10::IValue> arguments = call.arguments().vec();
    arguments[0] = local;
    arguments[2] = or_none(weight);
    arguments[3] = or_none(bias);
    const auto results = call.call_with(std::move(arguments));
    call.result(resolution.finish(results[0].toTensor(), all));
    for (size_t i = 1; i < results.size(); ++i) {
      call.result({results[i].toTensor(), resolution.layout_of(rows)});
    }
    return;
  }
  const auto mean = [&](const at::Tensor& tensor) {
    return mean_over(tensor, shape, axes, resolution.context());
  };
  const at::Tensor wide = local.to(at::toOpMathType(local.scalar_type()));
  const at::Tensor centered = less_mean(wide, shape, axes, resolution.context());
  const at::Tensor inverse = at::rsqrt(mean(centered * centered) + eps);
  at::Tensor y = centered * inverse;
  if (weight.defined()) y = y * weight;
  if (bias.defined()) y = y + bias;
  call.result(resolution.finish(y.to(local.scalar_type()), all));
  if (!returns_statistics) return;
  // LibTorch's backward takes no gradient of theirs.
  const at::ScalarType type = type_of_statistics(local, c10::ArrayRef<Value>(operands).slice(1));
  const c10::AutoGradMode no_grad(false);
  const LayoutPtr layout = resolution.layout_of(rows);
  call.result({mean(wide.detach()).to(type), layout});
  call.result({inverse.detach().to(type), layout});
}

/// rms_norm(x, shape, weight, eps): one statistic, reduced where H is cut.
void rms_norm(Call& call) {
  const Value x = call.value(0), weight = call.value(2);
  const std::vector<int64_t> shape = call.integers(1);
  const auto inner = static_cast<int64_t>(shape.size());
  for (int64_t i = 0; i < inner; ++i) {
    const int64_t dim = x.dim() - inner + i;
    if (dim < 0 || x.size(dim) != shape[i]) throw ShapeMismatch("rms_norm: other shape");
  }
  const std::string all = letters(x.dim());
  const std::string normalized = all.substr(all.size() - shape.size());
  c10::SmallVector<Value, 2> operands{x, weight};
  const Resolution resolution = resolve({{all, normalized}, {all}}, operands);
  const Axes axes = resolution.axes_keeping(normalized);
  const at::Tensor& part = operands[0].local;
  if (axes.empty()) {
    const c10::IValue scale = weight.defined() ? operands[1].local : c10::IValue();
    const auto y = call.call_with({part, shape, scale, call.argument(3)});
    return call.result(resolution.finish(y[0].toTensor(), all));
  }
  const at::ScalarType wide = at::toOpMathType(part.scalar_type());
  const double eps = !call.none(3)         ? call.number(3)
                     : wide == at::kDouble ? std::numeric_limits<double>::epsilon()
                                           : std::numeric_limits<float>::epsilon();
  const at::Tensor local = part.to(wide);
  at::Tensor y =
      local * at::rsqrt(mean_over(local * local, shape, axes, resolution.context()) + eps);
  if (weight.defined()) y = y * operands[1].local;
  call.result(resolution.finish(y.to(part.scalar_type()), all));
}

/// renorm(self, p, dim, maxnorm), by its definition: the parts enter the door one by one.
void renorm(Call& call) {
  const at::Tensor x = wrap(call.value(0));
  const int64_t own = call.dimension(2, x.dim());
  std::vector<int64_t> others;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d != own) others.push_back(d);
  }
  if (others.empty()) return call.gather("rows of no dimension");
  const double most = call.number(3);
  const at::Tensor wide = x.to(at::toOpMathType(x.scalar_type()));
  const at::Tensor norm = at::norm(wide, call.argument(1).toScalar(), others, /*keepdim=*/true);
  const at::Tensor factor = (most / (norm + 1e-7)).masked_fill(norm.le(most), 1);
  call.result_plain((wide * factor).to(x.scalar_type()));
}

}  // namespace

void add_normalization_rules(RuleTable& table) {
  table.add({"aten::softmax.int", "aten::_softmax"}, softmax<Softmax::plain>);
  table.add({"aten::_safe_softmax"}, softmax<Softmax::safe>);
  table.add({"aten::log_softmax.int", "aten::_log_softmax"}, log_softmax);
  table.add({"aten::layer_norm", "aten::native_layer_norm"}, layer_norm);
  table.add({"aten::rms_norm"}, rms_norm);
  table.add({"aten::renorm"}, renorm);
}

}  // namespace oslo
