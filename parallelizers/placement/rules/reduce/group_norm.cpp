#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>

#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"
#include "parallelizers/placement/rules/reduce/channels.h"

namespace oslo {
namespace {

/// The axes over which one group's elements are spread: any but those that cut the channels in
/// whole groups. Inside a cut that splits groups, none is known to be whole.
Axes axes_inside_groups(const Resolution& resolution, int64_t each) {
  Axes axes;
  bool split = false;
  for (int axis = 0; resolution.context() && axis < resolution.mesh().axes(); ++axis) {
    const auto& [letter, cut] = resolution.axis(axis);
    if (letter == 0 || letter == kBatch) continue;
    if (letter == kChannel) split |= !cut->divided(each);
    if (letter != kChannel || split) axes.push_back(axis);
  }
  return axes;
}

/// x, weight and bias.
using Operands = c10::SmallVector<Value, 3>;

/// A call of group_norm, or of the kernel below it, which returns each group's mean and inverse
/// deviation, too.
struct Grouped {
  Operands operands;
  int64_t groups = 1;
  double eps = 0;
  bool returns_statistics = false;

  bool fits() const {
    return fit_channels(operands) && groups >= 1 && operands[0].size(1) % groups == 0;
  }
  int64_t each() const { return operands[0].size(1) / groups; }
  /// Elements of a group of one image.
  double count() const {
    auto count = static_cast<double>(each());
    for (int64_t d = 2; d < operands[0].dim(); ++d) {
      count *= static_cast<double>(operands[0].size(d));
    }
    return count;
  }
};

struct Normalized {
  at::Tensor y, mean, inverse;  ///< the latter (n, groups)
};

/// Group norm by its formula. x (n, C / p, field..) holds parts of groups: their sums are reduced.
Normalized over_ranks(const Grouped& norm, const Axes& axes, const Resolution& resolution) {
  const Operands& operands = norm.operands;
  const at::Tensor& part = operands[0].local;
  const at::Tensor x = part.to(at::toOpMathType(part.scalar_type()));
  const int64_t dims = x.dim(), channels = operands[0].size(1);
  at::Tensor group = at::arange(channels, x.options().dtype(at::kLong).requires_grad(false));
  group = group.div(norm.each(), "floor");
  if (const LayoutPtr layout = resolution.layout_of(kChannels)) group = local_part(group, *layout);
  group = group.unsqueeze(0).expand({x.size(0), group.size(0)});
  std::vector<int64_t> field, beside(group.sizes().begin(), group.sizes().end());
  for (int64_t d = 2; d < dims; ++d) field.push_back(d);
  beside.resize(dims, 1);
  const auto mean_of = [&](const at::Tensor& tensor) {
    const at::Tensor sums = field.empty() ? tensor : tensor.sum(field);
    at::Tensor sum =
        at::zeros({x.size(0), norm.groups}, sums.options()).scatter_add(1, group, sums);
    for (const int axis : axes) sum = reduce_axis(sum, resolution.mesh(), axis);
    return sum / norm.count();
  };
  // Every rank goes on with it, for something else.
  const auto of_channels = [&](const at::Tensor& mean) {
    Value used{mean, nullptr};
    for (const int axis : axes) used = copy_axis(used, resolution.mesh(), axis);
    return used.local.gather(1, group).reshape(beside);
  };
  const at::Tensor mean = mean_of(x);
  const at::Tensor centered = x - of_channels(mean);
  const at::Tensor variance = mean_of(centered * centered);
  Normalized done{centered * at::rsqrt(of_channels(variance) + norm.eps), {}, {}};
  if (operands[1].defined()) done.y = done.y * per_channel(operands[1].local, dims);
  if (operands[2].defined()) done.y = done.y + per_channel(operands[2].local, dims);
  done.y = done.y.to(part.scalar_type());
  if (!norm.returns_statistics) return done;
  const at::ScalarType type = type_of_statistics(part, c10::ArrayRef<Value>(operands).slice(1));
  // Groups that another axis gave to other ranks come from there.
  const auto of_all_groups = [&](at::Tensor found) {
    for (const int axis : resolution.axes_keeping(kChannels)) {
      const bool inside = std::find(axes.begin(), axes.end(), axis) != axes.end();
      if (!inside) found = reduce_axis(found, resolution.mesh(), axis);
    }
    return found;
  };
  done.mean = of_all_groups(mean).to(type);
  done.inverse = at::rsqrt(of_all_groups(variance) + norm.eps).to(type);
  return done;
}

/// How (n, groups) lies beside channels that are cut in whole groups.
LayoutPtr layout_of_groups(const Resolution& resolution, int64_t each) {
  const LayoutPtr channels = resolution.layout_of("ab");
  if (!channels) return nullptr;
  auto layout = std::make_shared<Layout>(*channels);
  for (int axis = 0; axis < layout->axes(); ++axis) {
    Layout::AxisCut& own = (*layout)[axis];
    if (own.dim == 1) own.cut = own.cut->divided(each);
  }
  return layout;
}

/// Local where the channels are cut in whole groups, of which a rank may have none. `below` runs
/// the operator on this rank's operands and groups.
template <typename Below>
void normalize(Call& call, Grouped norm, const Below& below) {
  if (!norm.fits()) return call.gather("shapes that do not fit, or without elements");
  Operands& operands = norm.operands;
  DimensionMap map = map_of_channels(operands);
  const std::string all = map.results[0];
  const Resolution resolution = resolve(map, operands);
  const int64_t each = norm.each();
  for (int i = 0; i < 3; ++i) map.scales.push_back({i, kChannel, each});
  wish_whole_units(map, operands);
  const Axes axes = axes_inside_groups(resolution, each);
  if (!axes.empty()) {
    const Normalized done = over_ranks(norm, axes, resolution);
    call.result(resolution.finish(done.y, all));
    if (!norm.returns_statistics) return;
    for (at::Tensor statistic : {done.mean, done.inverse}) {
      call.result({statistic, resolution.layout_of(std::string{kBatch, '-'})});
    }
    return;
  }
  map.results.resize(norm.returns_statistics ? 3 : 1, "ab");
  const at::Tensor local[] = {operands[0].local, operands[1].local, operands[2].local};
  const auto run = [&](c10::ArrayRef<at::Tensor> own) { return below(own, own[0].size(1) / each); };
  const auto results = on_elements(map, local, run, Lent::distinct);
  call.result(resolution.finish(results[0].toTensor(), all));
  for (size_t i = 1; i < results.size(); ++i) {
    call.result({results[i].toTensor(), layout_of_groups(resolution, each)});
  }
}

/// group_norm(x, num_groups, weight, bias, eps, ..).
void group_norm(Call& call) {
  const Grouped norm{
      {call.value(0), call.value(2), call.value(3)}, call.integer(1), call.number(4)};
  normalize(call, norm, [&](c10::ArrayRef<at::Tensor> own, int64_t groups) {
    std::vector<c10::IValue> arguments = call.arguments().vec();
    arguments[0] = own[0];
    arguments[1] = groups;
    arguments[2] = or_none(own[1]);
    arguments[3] = or_none(own[2]);
    return call.call_with(std::move(arguments));
  });
}

/// native_group_norm(x, weight, bias, N, C, elements of the field, groups, eps).
void native_group_norm(Call& call) {
  const Grouped norm{
      {call.value(0), call.value(1), call.value(2)}, call.integer(6), call.number(7), true};
  normalize(call, norm, [&](c10::ArrayRef<at::Tensor> own, int64_t groups) {
    const int64_t images = own[0].size(0), channels = own[0].size(1);
    return call.call_with({own[0], or_none(own[1]), or_none(own[2]), images, channels,
                           own[0].numel() / (images * channels), groups, call.argument(7)});
  });
}

}  // namespace

void add_group_norm_rules(RuleTable& table) {
  table.add({"aten::group_norm"}, group_norm);
  table.add({"aten::native_group_norm"}, native_group_norm);
}

}  // namespace oslo
