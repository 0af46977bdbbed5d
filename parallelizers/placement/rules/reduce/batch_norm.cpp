#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>

#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"
#include "parallelizers/placement/rules/reduce/channels.h"

namespace oslo {
namespace {

constexpr const char* kTwoOfChannels = "-b";

/// Where x, weight and bias of a call end, and the running mean and variance begin.
constexpr size_t kRunning = 3;

using Operands = c10::SmallVector<Value, 5>;

/// A call of batch_norm, of instance_norm or of a kernel below them: x, weight, bias, and running
/// mean and variance where it takes them.
struct Norm {
  Operands operands;
  bool training = false;
  double momentum = 0, eps = 0;

  bool tracks() const { return operands.size() > kRunning && operands[kRunning].defined(); }
};

/// `statistics`: whether the operator takes running ones; `chooses`: whether it is told to train.
Norm norm_of(const Call& call, bool statistics, bool chooses) {
  Norm norm;
  size_t next = statistics ? kRunning + 2 : kRunning;
  for (size_t i = 0; i < next; ++i) norm.operands.push_back(call.value(i));
  if (chooses) norm.training = call.boolean(next++);
  norm.momentum = call.number(next);
  norm.eps = call.number(next + 1);
  return norm;
}

struct Normalized {
  at::Tensor y, mean, variance;   ///< the latter two: the running ones afterwards, if there are any
  std::vector<at::Tensor> saved;  ///< mean and 1 / deviation, of an operator that returns them
};

size_t returned_by(const Call& call) {
  return call.op().schema->returns().size();
}

/// The operator itself on this rank's part, and on copies of the running statistics. Many formulas
/// leave parts without elements out of the graph, which ranks that hold some have in theirs.
Normalized run_below(Call& call, const Operands& operands, DimensionMap map) {
  c10::SmallVector<at::Tensor, 5> local;
  for (const Value& operand : operands) local.push_back(operand.local);
  const auto function = [&](c10::ArrayRef<at::Tensor> own) {
    std::vector<c10::IValue> arguments = call.arguments().vec();
    for (size_t i = 0; i < own.size(); ++i) arguments[i] = or_none(own[i]);
    c10::SmallVector<at::Tensor, 2> running;
    for (size_t buffer = kRunning; buffer < own.size(); ++buffer) {
      if (!own[buffer].defined()) continue;
      running.push_back(own[buffer].clone());
      arguments[buffer] = running.back();
    }
    std::vector<c10::IValue> results = call.call_with(std::move(arguments));
    results.insert(results.end(), running.begin(), running.end());
    return results;
  };
  const size_t returned = returned_by(call);
  map.results.resize(returned + 2, kChannels);
  const auto results = on_elements(map, local, function, Lent::distinct);
  Normalized done{results[0].toTensor(), {}, {}, {}};
  for (size_t i = 1; i < returned; ++i) done.saved.push_back(results[i].toTensor());
  if (results.size() == returned + 2) {
    done.mean = results[returned].toTensor();
    done.variance = results[returned + 1].toTensor();
  }
  return done;
}

/// Mean and variance of each channel, whose elements `axes` spread: x less its mean, too.
struct Statistics {
  at::Tensor mean, variance, centered;
  double count = 1;
};

Statistics statistics_over(const Value& x, const Axes& axes, const ContextPtr& context) {
  const at::Tensor wide = x.local.to(at::toOpMathType(x.local.scalar_type()));
  Statistics found;
  std::vector<int64_t> along;
  for (int64_t d = 0; d < wide.dim(); ++d) {
    if (d == 1) continue;
    along.push_back(d);
    found.count *= static_cast<double>(x.size(d));
  }
  const auto mean_of = [&](const at::Tensor& tensor) {
    return sum_over(tensor.sum(along, /*keepdim=*/true), axes, context) / found.count;
  };
  found.mean = mean_of(wide);
  found.centered = wide - found.mean;
  found.variance = mean_of(found.centered * found.centered);
  return found;
}

/// The running statistics after a batch with these.
void move_running(Normalized& done, const Statistics& batch, const Value& mean,
                  const Value& variance, double momentum) {
  const c10::AutoGradMode no_grad(false);
  const auto moved = [&](const at::Tensor& running, const at::Tensor& now) {
    return running * (1 - momentum) +
           now.reshape(running.sizes()).to(running.scalar_type()) * momentum;
  };
  done.mean = moved(mean.local, batch.mean);
  done.variance = moved(variance.local, batch.variance * (batch.count / (batch.count - 1)));
}

/// Batch norm by its formula, with statistics over all ranks of `axes` (forward and backward).
Normalized by_definition(const Call& call, const Norm& norm, const Axes& axes,
                         const ContextPtr& context) {
  const Operands& operands = norm.operands;
  const Value& x = operands[0];
  const int64_t dims = x.dim();
  const Statistics batch = statistics_over(x, axes, context);
  const at::Tensor inverse = at::rsqrt(batch.variance + norm.eps);
  Normalized done{batch.centered * inverse, {}, {}, {}};
  if (operands[1].defined()) done.y = done.y * per_channel(operands[1].local, dims);
  if (operands[2].defined()) done.y = done.y + per_channel(operands[2].local, dims);
  done.y = done.y.to(x.local.scalar_type());
  if (returned_by(call) > 1) {  // LibTorch's backward takes no gradient of theirs
    const at::ScalarType type =
        type_of_statistics(x.local, c10::ArrayRef<Value>(operands).slice(1));
    for (const at::Tensor& one : {batch.mean, inverse}) {
      done.saved.push_back(one.detach().flatten().to(type));
    }
  }
  if (norm.tracks()) {
    move_running(done, batch, operands[kRunning], operands[kRunning + 1], norm.momentum);
  }
  return done;
}

/// The running statistics, arguments `first` and the next, are changed in place. Plain buffers are
/// the same on all ranks: their parts are joined, both at once.
void write_buffers(const Call& call, const Normalized& done, const Resolution& resolution,
                   size_t first = kRunning) {
  const c10::AutoGradMode no_grad(false);
  const LayoutPtr layout = resolution.layout_of(kChannels);
  if (call.value(first).cut() || call.value(first + 1).cut()) {
    write_result(call, call.tensor(first), {done.mean, layout});
    write_result(call, call.tensor(first + 1), {done.variance, layout});
    return;
  }
  const at::Tensor both =
      gather_all({at::stack({done.mean, done.variance}), resolution.layout_of(kTwoOfChannels)})
          .local;
  const auto whole = std::make_shared<Layout>(call.context());
  write_result(call, call.tensor(first), {both[0], whole});
  write_result(call, call.tensor(first + 1), {both[1], whole});
}

/// Leaves the running statistics' versions as they were. LibTorch's batch norm writes them and does
/// not say so, and another call of the norm, on a whole batch, may have saved them for backward.
class VersionsKept {
 public:
  VersionsKept(const Call& call, size_t first) {
    if (call.op().writes_out) return;  // it says so
    for (const size_t buffer : {first, first + 1}) {
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

/// From the running statistics batch norm works element by element. In training, statistics of cut
/// channels are a rank's own; a cut batch or field has them reduced.
void normalize(Call& call, Norm norm) {
  Operands& operands = norm.operands;
  if (!fit_channels(operands)) return call.gather("shapes that do not fit, or without elements");
  const DimensionMap map = map_of_channels(operands);
  const Resolution resolution = resolve(map, operands);
  const Axes axes = resolution.axes_beside(kChannels);
  const Normalized done = norm.training && !axes.empty()
                              ? by_definition(call, norm, axes, resolution.context())
                              : run_below(call, operands, map);
  call.result(resolution.finish(done.y, map.results[0]));
  // Of the running ones a CPU's kernels save nothing.
  const bool nothing = !norm.training && !operands[0].local.is_cuda();
  for (const at::Tensor& saved : done.saved) {
    call.result({saved, nothing ? nullptr : resolution.layout_of(kChannels)});
  }
  if (!norm.training || !done.mean.defined()) return;
  const VersionsKept as_before(call, kRunning);
  write_buffers(call, done, resolution);
}

/// batch_norm(x, weight, bias, running mean, running variance, training, momentum, eps, ..), and
/// what exported graphs call in its place: native_batch_norm, which returns the batch's statistics,
/// and its like, which take no running ones, or only these.
template <bool statistics, bool chooses>
void batch_norm(Call& call) {
  normalize(call, norm_of(call, statistics, chooses));
}

/// Statistics of one image and channel: with `use_input_stats` the field must be whole.
void instance_norm(Call& call) {
  Norm norm = norm_of(call, /*statistics=*/true, /*chooses=*/true);
  Operands& operands = norm.operands;
  if (!fit_channels(operands)) return call.gather("shapes that do not fit, or without elements");
  DimensionMap map = map_of_channels(operands);
  if (norm.training) map.whole = map.results[0].substr(2);
  const Resolution resolution = resolve(map, operands);
  Normalized done = run_below(call, operands, map);
  call.result(resolution.finish(done.y, map.results[0]));
  if (!norm.training || !done.mean.defined()) return;
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

/// batch_norm_update_stats(x, running mean, running variance, momentum): mean and variance of the
/// batch, towards which the running ones move.
void update_statistics(Call& call) {
  constexpr size_t kFirst = 1;
  Operands operands{call.value(0), call.value(1), call.value(2)};
  if (!fit_channels(operands)) return call.gather("shapes that do not fit, or without elements");
  const c10::AutoGradMode no_grad(false);
  DimensionMap map = map_of_channels(operands);
  const Resolution resolution = resolve(map, operands);
  const Axes axes = resolution.axes_beside(kChannels);
  const bool tracks = operands[kFirst].defined();
  Normalized done;
  if (axes.empty()) {
    map.results.assign(4, kChannels);
    const auto below = [&](c10::ArrayRef<at::Tensor> own) {
      const at::Tensor mean = tracks ? own[1].clone() : own[1];
      const at::Tensor variance = tracks ? own[2].clone() : own[2];
      auto results = call.call_with({own[0], or_none(mean), or_none(variance), call.argument(3)});
      if (tracks) results.insert(results.end(), {mean, variance});
      return results;
    };
    const at::Tensor local[] = {operands[0].local, operands[1].local, operands[2].local};
    const auto results = on_elements(map, local, below, Lent::distinct);
    done.saved = {results[0].toTensor(), results[1].toTensor()};
    if (tracks) done.mean = results[2].toTensor();
    if (tracks) done.variance = results[3].toTensor();
  } else {
    const Statistics batch = statistics_over(operands[0], axes, resolution.context());
    const at::ScalarType type =
        type_of_statistics(operands[0].local, c10::ArrayRef<Value>(operands).slice(1));
    done.saved = {batch.mean.flatten().to(type), batch.variance.flatten().to(type)};
    if (tracks) move_running(done, batch, operands[1], operands[2], call.number(3));
  }
  for (const at::Tensor& saved : done.saved) {
    call.result({saved, resolution.layout_of(kChannels)});
  }
  if (!tracks) return;
  const VersionsKept as_before(call, kFirst);
  write_buffers(call, done, resolution, kFirst);
}

}  // namespace

void add_batch_norm_rules(RuleTable& table) {
  table.add({"aten::batch_norm", "aten::native_batch_norm", "aten::_native_batch_norm_legit"},
            batch_norm</*statistics=*/true, /*chooses=*/true>);
  table.add({"aten::_native_batch_norm_legit.no_stats"},
            batch_norm</*statistics=*/false, /*chooses=*/true>);
  table.add({"aten::_native_batch_norm_legit_no_training"},
            batch_norm</*statistics=*/true, /*chooses=*/false>);
  table.add({"aten::batch_norm_update_stats"}, update_statistics);
  table.add({"aten::instance_norm"}, instance_norm);
}

}  // namespace oslo
