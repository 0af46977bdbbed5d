#include <ATen/ATen.h>

#include "parallelizers/placement/call.h"
#include "parallelizers/placement/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// softmax, log_softmax: the dimension must be whole.
void softmax(Call& call) {
  const int64_t dims = call.value(0).dim();
  const std::string own = letters(dims);
  const std::string along = dims == 0 ? "" : std::string(1, own[call.dimension(1, dims)]);
  call.run({{own}, {own}, along});
}

/// The axes on which one of the normalized dimensions stays cut.
std::vector<int> cut_statistics(const Resolution& resolution, const std::string& normalized) {
  std::vector<int> axes;
  for (int axis = 0; resolution.mesh() && axis < resolution.mesh()->axes(); ++axis) {
    const char letter = resolution.axis(axis).letter;
    if (letter != 0 && normalized.find(letter) != std::string::npos) axes.push_back(axis);
  }
  return axes;
}

/// x (.., H), weight and bias (H) or absent. Where H is cut (2D), mean and variance are reduced
/// over the axis, forward and backward.
void layer_norm(Call& call) {
  const Value x = call.value(0);
  const std::vector<int64_t> shape = call.integers(1);
  const bool has_weight = call.value(2).defined(), has_bias = call.value(3).defined();
  const double eps = call.number(4);
  const auto inner = static_cast<int64_t>(shape.size());
  for (int64_t i = 0; i < inner; ++i) {
    const int64_t dim = x.dim() - inner + i;
    if (dim < 0 || x.size(dim) != shape[i]) throw ShapeMismatch("layer_norm: other shape");
  }
  const std::string all = letters(x.dim());
  const std::string normalized = all.substr(all.size() - shape.size());
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
  const std::vector<int> axes = cut_statistics(resolution, normalized);
  if (axes.empty()) {
    return call.result(resolution.finish(at::layer_norm(local, shape, weight, bias, eps), all));
  }
  std::vector<int64_t> along;
  double count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    along.push_back(x.dim() - static_cast<int64_t>(i) - 1);
    count *= static_cast<double>(shape[i]);
  }
  const auto mean = [&](const at::Tensor& tensor) {
    at::Tensor sum = tensor.sum(along, /*keepdim=*/true);
    for (const int axis : axes) sum = reduce_and_copy(sum, resolution.mesh(), axis);
    return sum / count;
  };
  const at::Tensor centered = local - mean(local);
  at::Tensor y = centered * at::rsqrt(mean(centered * centered) + eps);
  if (weight.defined()) y = y * weight;
  if (bias.defined()) y = y + bias;
  call.result(resolution.finish(y, all));
}

}  // namespace

void add_normalization_rules(RuleTable& table) {
  table.add({"aten::softmax.int", "aten::log_softmax.int", "aten::_softmax", "aten::_log_softmax"},
            softmax);
  table.add({"aten::layer_norm"}, layer_norm);
}

}  // namespace oslo
