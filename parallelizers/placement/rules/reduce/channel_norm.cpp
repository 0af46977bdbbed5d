#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// Letters of x are those of `letters()`: the batch, the channels, the field.
constexpr char kBatch = 'a', kChannel = 'b';
constexpr const char* kChannels = "b";
constexpr const char* kTwoOfChannels = "-b";

/// x (n, C, field..), then per-channel tensors (C) or absent. Shapes that do not fit, or are empty,
/// are left to the operator.
bool fits(c10::ArrayRef<Value> operands) {
  const Value& x = operands[0];
  if (x.dim() < 2) return false;
  for (const int64_t size : x.sizes()) {
    if (size == 0) return false;
  }
  for (const Value& other : operands.slice(1)) {
    if (other.defined() && (other.dim() != 1 || other.size(0) != x.size(1))) return false;
  }
  return true;
}

/// All have the channels of x; absent operands have a place in the map, too.
DimensionMap map_of(c10::ArrayRef<Value> operands) {
  const std::string all = letters(operands[0].dim());
  DimensionMap map{{all}, {all}};
  while (map.operands.size() < operands.size()) map.operands.push_back(kChannels);
  return map;
}

at::Tensor sum_over(at::Tensor sum, const Axes& axes, const ContextPtr& context) {
  for (const int axis : axes) sum = reduce_and_copy(sum, context->mesh(), axis);
  return sum;
}

/// (C) beside x (n, C, field..).
at::Tensor per_channel(const at::Tensor& tensor, int64_t dims) {
  std::vector<int64_t> sizes(dims, 1);
  sizes[1] = tensor.numel();
  return tensor.reshape(sizes);
}

struct Normalized {
  at::Tensor y, mean, variance;  ///< the latter two: the running ones afterwards, if there are any
};

using Operands = c10::SmallVector<Value, 5>;

/// x, weight, bias, running mean and variance of batch_norm and instance_norm.
Operands operands_of(const Call& call) {
  return {call.value(0), call.value(1), call.value(2), call.value(3), call.value(4)};
}

/// The operator itself on this rank's part, and on copies of the running statistics. Many formulas
/// leave parts without elements out of the graph, which ranks that hold some have in theirs.
Normalized run_below(Call& call, const Operands& operands, DimensionMap map) {
  c10::SmallVector<at::Tensor, 5> local;
  for (const Value& operand : operands) local.push_back(operand.local);
  const auto function = [&](c10::ArrayRef<at::Tensor> own) {
    std::vector<c10::IValue> arguments = call.arguments().vec(), results;
    for (size_t i = 0; i < own.size(); ++i) arguments[i] = or_none(own[i]);
    c10::SmallVector<at::Tensor, 2> running;
    for (const size_t buffer : {3, 4}) {
      if (!own[buffer].defined()) continue;
      running.push_back(own[buffer].clone());
      arguments[buffer] = running.back();
    }
    results.push_back(call.call_with(std::move(arguments))[0]);
    results.insert(results.end(), running.begin(), running.end());
    return results;
  };
  map.results.resize(3, kChannels);
  const auto results = on_elements(map, local, function, Lent::distinct);
  Normalized done{results[0].toTensor(), {}, {}};
  if (results.size() == 3) {
    done.mean = results[1].toTensor();
    done.variance = results[2].toTensor();
  }
  return done;
}

/// Batch norm by its formula, with statistics over all ranks of `axes` (forward and backward).
Normalized by_definition(Call& call, const Operands& operands, const Axes& axes,
                         const ContextPtr& context) {
  const at::Tensor& part = operands[0].local;
  const at::Tensor x = part.to(at::toOpMathType(part.scalar_type()));
  const int64_t dims = x.dim();
  const double momentum = call.number(6), eps = call.number(7);
  double count = 1;
  std::vector<int64_t> along;
  for (int64_t d = 0; d < dims; ++d) {
    if (d == 1) continue;
    along.push_back(d);
    count *= static_cast<double>(operands[0].size(d));
  }
  const auto mean_of = [&](const at::Tensor& tensor) {
    return sum_over(tensor.sum(along, /*keepdim=*/true), axes, context) / count;
  };
  const at::Tensor mean = mean_of(x);
  const at::Tensor centered = x - mean;
  const at::Tensor variance = mean_of(centered * centered);
  Normalized done{centered * at::rsqrt(variance + eps), {}, {}};
  if (operands[1].defined()) done.y = done.y * per_channel(operands[1].local, dims);
  if (operands[2].defined()) done.y = done.y + per_channel(operands[2].local, dims);
  done.y = done.y.to(part.scalar_type());
  if (operands[3].defined()) {
    const c10::AutoGradMode no_grad(false);
    const auto moved = [&](const at::Tensor& running, const at::Tensor& now) {
      return running * (1 - momentum) +
             now.reshape(running.sizes()).to(running.scalar_type()) * momentum;
    };
    done.mean = moved(operands[3].local, mean);
    done.variance = moved(operands[4].local, variance * (count / (count - 1)));
  }
  return done;
}

/// The running statistics are changed in place. Plain buffers are the same on all ranks: their
/// parts are joined, both at once.
void write_buffers(const Call& call, const Normalized& done, const Resolution& resolution) {
  const c10::AutoGradMode no_grad(false);
  const LayoutPtr layout = resolution.layout_of(kChannels);
  if (call.value(3).cut() || call.value(4).cut()) {
    write_result(call, call.tensor(3), {done.mean, layout});
    write_result(call, call.tensor(4), {done.variance, layout});
    return;
  }
  const at::Tensor both =
      gather_all({at::stack({done.mean, done.variance}), resolution.layout_of(kTwoOfChannels)})
          .local;
  const auto whole = std::make_shared<Layout>(call.context());
  write_result(call, call.tensor(3), {both[0], whole});
  write_result(call, call.tensor(4), {both[1], whole});
}

/// Leaves the running statistics' versions as they were. LibTorch's batch norm writes them and does
/// not say so, and another call of the norm, on a whole batch, may have saved them for backward.
class VersionsKept {
 public:
  explicit VersionsKept(const Call& call) {
    for (const size_t buffer : {3, 4}) {
      const c10::VariableVersion& version =
          call.tensor(buffer).unsafeGetTensorImpl()->version_counter();
      if (version.enabled()) kept_.emplace_back(version, version.current_version());
    }
  }
  ~VersionsKept() {
    for (auto& [version, before] : kept_) version.set_version(before);
  }
  VersionsKept(const VersionsKept&) = delete;
  VersionsKept& operator=(const VersionsKept&) = delete;

 private:
  std::vector<std::pair<c10::VariableVersion, uint32_t>> kept_;
};

/// From the running statistics batch_norm works element by element. In training, statistics of cut
/// channels are a rank's own; a cut batch or field has them reduced.
void batch_norm(Call& call) {
  Operands operands = operands_of(call);
  if (!fits(operands)) return call.gather("shapes that do not fit, or without elements");
  const bool training = call.boolean(5);
  const DimensionMap map = map_of(operands);
  const Resolution resolution = resolve(map, operands);
  const Axes axes = resolution.axes_beside(kChannels);
  const bool by_hand = training && !axes.empty();
  const Normalized done = by_hand ? by_definition(call, operands, axes, resolution.context())
                                  : run_below(call, operands, map);
  call.result(resolution.finish(done.y, map.results[0]));
  if (!training || !done.mean.defined()) return;
  const VersionsKept as_before(call);
  write_buffers(call, done, resolution);
}

/// Statistics of one image and channel: with `use_input_stats` the field must be whole.
void instance_norm(Call& call) {
  Operands operands = operands_of(call);
  if (!fits(operands)) return call.gather("shapes that do not fit, or without elements");
  const bool training = call.boolean(5);
  DimensionMap map = map_of(operands);
  if (training) map.whole = map.results[0].substr(2);
  const Resolution resolution = resolve(map, operands);
  Normalized done = run_below(call, operands, map);
  call.result(resolution.finish(done.y, map.results[0]));
  if (!training || !done.mean.defined()) return;
  // The running statistics move by the mean over all images.
  const Axes axes = resolution.axes_beside(kChannels);
  const Value& x = operands[0];
  const double share = static_cast<double>(x.local.size(0)) / static_cast<double>(x.size(0));
  const c10::AutoGradMode no_grad(false);
  if (!axes.empty()) {
    const at::ScalarType type = done.mean.scalar_type();
    const at::Tensor own = at::stack({done.mean, done.variance}).to(at::toOpMathType(type)) * share;
    const at::Tensor both = sum_over(own, axes, resolution.context()).to(type);
    done.mean = both[0];
    done.variance = both[1];
  }
  write_buffers(call, done, resolution);
}

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

/// Group norm by its formula. x (n, C / p, field..) holds parts of groups: their sums are reduced.
at::Tensor group_norm_over(const Operands& operands, const Axes& axes, const Resolution& resolution,
                           int64_t groups, double count, double eps) {
  const at::Tensor& part = operands[0].local;
  const at::Tensor x = part.to(at::toOpMathType(part.scalar_type()));
  const int64_t dims = x.dim(), channels = operands[0].size(1);
  at::Tensor group = at::arange(channels, x.options().dtype(at::kLong).requires_grad(false));
  group = group.div(channels / groups, "floor");
  if (const LayoutPtr layout = resolution.layout_of(kChannels)) group = local_part(group, *layout);
  group = group.unsqueeze(0).expand({x.size(0), group.size(0)});
  std::vector<int64_t> field, beside(group.sizes().begin(), group.sizes().end());
  for (int64_t d = 2; d < dims; ++d) field.push_back(d);
  beside.resize(dims, 1);
  const auto mean_of = [&](const at::Tensor& tensor) {
    const at::Tensor sums = field.empty() ? tensor : tensor.sum(field);
    const at::Tensor own =
        at::zeros({x.size(0), groups}, sums.options()).scatter_add(1, group, sums);
    return (sum_over(own, axes, resolution.context()) / count).gather(1, group).reshape(beside);
  };
  const at::Tensor centered = x - mean_of(x);
  at::Tensor y = centered * at::rsqrt(mean_of(centered * centered) + eps);
  if (operands[1].defined()) y = y * per_channel(operands[1].local, dims);
  if (operands[2].defined()) y = y + per_channel(operands[2].local, dims);
  return y.to(part.scalar_type());
}

/// group_norm(x, num_groups, weight, bias, eps, ..): local where the channels are cut in whole
/// groups, of which a rank may have none.
void group_norm(Call& call) {
  Operands operands{call.value(0), call.value(2), call.value(3)};
  const int64_t groups = call.integer(1);
  if (!fits(operands) || groups < 1 || operands[0].size(1) % groups != 0) {
    return call.gather("shapes that do not fit, or without elements");
  }
  DimensionMap map = map_of(operands);
  const std::string all = map.results[0];
  const Resolution resolution = resolve(map, operands);
  const int64_t each = operands[0].size(1) / groups;
  for (int i = 0; i < 3; ++i) map.scales.push_back({i, kChannel, each});
  wish_whole_units(map, operands);
  const Axes axes = axes_inside_groups(resolution, each);
  if (!axes.empty()) {
    double count = static_cast<double>(each);
    for (int64_t d = 2; d < operands[0].dim(); ++d)
      count *= static_cast<double>(operands[0].size(d));
    return call.result(resolution.finish(
        group_norm_over(operands, axes, resolution, groups, count, call.number(4)), all));
  }
  const auto below = [&](c10::ArrayRef<at::Tensor> own) {
    std::vector<c10::IValue> arguments = call.arguments().vec();
    arguments[0] = own[0];
    arguments[1] = own[0].size(1) / each;
    arguments[2] = or_none(own[1]);
    arguments[3] = or_none(own[2]);
    return call.call_with(std::move(arguments));
  };
  const at::Tensor local[] = {operands[0].local, operands[1].local, operands[2].local};
  const auto results = on_elements(map, local, below, Lent::distinct);
  call.result(resolution.finish(results[0].toTensor(), all));
}

/// Puts what LibTorch's kernels, whose schemas do not say so, have written into copies of the
/// statistics (arguments `first` and the next) where it belongs. `writes`: whether they do.
void gather_and_write_statistics(Call& call, size_t first, bool writes) {
  std::vector<c10::IValue> arguments = call.arguments().vec();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    if (writes && (i == first || i == first + 1)) {
      check_written_where_held(call, call.tensor(i));
    }
    arguments[i] = gather_reported(call.value(i), call.name(), "takes its statistics of the whole");
    const bool statistic = i == first || i == first + 1;
    if (statistic && call.value(i).cut()) arguments[i] = arguments[i].toTensor().detach().clone();
  }
  const auto results = call.call_with(arguments);
  const c10::AutoGradMode no_grad(false);
  for (const size_t i : {first, first + 1}) {
    const Value statistic = call.value(i);
    if (statistic.cut()) write_to(call.tensor(i), {arguments[i].toTensor(), nullptr}, call.name());
  }
  for (const c10::IValue& result : results) call.result_plain(result);
}

/// native_batch_norm(x, weight, bias, running mean, running variance, ..): batch_norm has the
/// better rule.
void native_batch_norm(Call& call) {
  gather_and_write_statistics(call, 3, call.boolean(5));
}

/// batch_norm_update_stats(x, running mean, running variance, momentum).
void update_statistics(Call& call) {
  gather_and_write_statistics(call, 1, true);
}

}  // namespace

void add_channel_norm_rules(RuleTable& table) {
  table.add({"aten::batch_norm"}, batch_norm);
  table.add({"aten::native_batch_norm"}, native_batch_norm);
  table.add({"aten::batch_norm_update_stats"}, update_statistics);
  table.add({"aten::instance_norm"}, instance_norm);
  table.add({"aten::group_norm"}, group_norm);
}

}  // namespace oslo
