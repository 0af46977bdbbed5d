#include "parallelizers/data/gradient_average.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/presence/pending.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

/// Gradients that travel together, and behind them, for each, how many ranks have it.
struct GradientBucket {
  std::vector<at::Tensor> parameters = {};
  int64_t bytes = 0;
  size_t missing = 0;  ///< that the last pass may still give
  std::optional<Pending> under_way = {};
};

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// As many elements as this rank's part of it has.
at::Tensor flat_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) {
    return at::zeros({parameter.numel()},
                     at::TensorOptions(parameter.dtype()).device(parameter.device()));
  }
  if (gradient.is_sparse()) return gradient.to_dense().reshape({-1});
  const bool marked = mark_of(gradient) != nullptr;
  return (marked ? unmarked_alias(gradient) : gradient.detach()).reshape({-1});
}

void set_gradient(const at::Tensor& parameter, const at::Tensor& average) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && !gradient.is_sparse()) {
    const bool marked = mark_of(gradient) != nullptr;
    (marked ? unmarked_alias(gradient) : gradient.detach()).copy_(average.view(gradient.sizes()));
    return;
  }
  const at::Tensor own = average.view(parameter.sizes()).clone();
  gradient = mark_of(parameter) != nullptr ? marked_like(own, parameter) : own;
}

at::Tensor packed(const GradientBucket& bucket) {
  std::vector<at::Tensor> flat;
  std::vector<double> have;
  for (const at::Tensor& parameter : bucket.parameters) {
    flat.push_back(flat_gradient(parameter));
    have.push_back(parameter.grad().defined() ? 1 : 0);
  }
  flat.push_back(at::tensor(have, flat.front().options()));
  return at::cat(flat);
}

void unpack(const GradientBucket& bucket, const at::Tensor& all) {
  const auto number = static_cast<int64_t>(bucket.parameters.size());
  const at::Tensor had = all.narrow(0, all.numel() - number, number).to(at::kCPU, at::kDouble);
  int64_t start = 0;
  for (int64_t i = 0; i < number; ++i) {
    const at::Tensor& parameter = bucket.parameters[i];
    const at::Tensor own = all.narrow(0, start, parameter.numel());
    start += parameter.numel();
    if (had.const_data_ptr<double>()[i] > 0) set_gradient(parameter, own);
  }
}

std::vector<GradientBucket> divided(const std::vector<at::Tensor>& parameters,
                                    int64_t bucket_bytes) {
  std::vector<GradientBucket> full;
  std::map<std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>, GradientBucket> open;
  for (size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters[i];
    if (!parameter.defined() || !parameter.requires_grad() || !is_here(parameter)) continue;
    const c10::Device device = parameter.device();
    GradientBucket& bucket = open[{parameter.scalar_type(), device.type(), device.index()}];
    bucket.parameters.push_back(parameter);
    bucket.bytes += parameter.numel() * static_cast<int64_t>(parameter.element_size());
    if (bucket.bytes < bucket_bytes) continue;
    full.push_back(std::move(bucket));
    bucket = {};
  }
  for (auto& [_, bucket] : open) {
    if (!bucket.parameters.empty()) full.push_back(std::move(bucket));
  }
  return full;
}

}  // namespace

struct GradientAverage::State {
  State(Group& group, const std::vector<at::Tensor>& parameters, int64_t bucket_bytes)
      : group(group), buckets(divided(parameters, bucket_bytes)) {}
  ~State() { unwatch(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void watch(const at::Tensor& parameter, size_t bucket, bool comes);
  void unwatch();
  void came(size_t bucket, bool& once);
  void start(GradientBucket& bucket);

  Group& group;
  std::vector<GradientBucket> buckets;
  size_t started = 0;  ///< of them, in their order, which is that of all ranks
  std::mutex mutex;
  std::vector<std::pair<uintptr_t, std::shared_ptr<Node>>> watches;
};

void GradientAverage::State::watch(const at::Tensor& parameter, size_t bucket, bool comes) {
  using torch::autograd::utils::LambdaPostHook;
  auto node = torch::autograd::impl::grad_accumulator(parameter);
  const uintptr_t hook = node->add_post_hook(std::make_unique<LambdaPostHook>(
      [this, bucket, once = !comes](const variable_list& outputs, const variable_list&) mutable {
        came(bucket, once);
        return outputs;
      }));
  watches.emplace_back(hook, std::move(node));
}

void GradientAverage::State::unwatch() {
  for (const auto& [hook, node] : watches) node->del_post_hook(hook);
  watches.clear();
}

void GradientAverage::State::came(size_t bucket, bool& once) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::exchange(once, true)) {
    OSLO_CHECK(bucket >= started,
               "a parameter got another gradient in the last backward pass of a step, when its "
               "average over data replicas was under way; call backward once in a micro-batch");
    return;
  }
  --buckets[bucket].missing;
  // The last one would set out at the end of the pass: whoever finishes waits for it at once.
  while (started + 1 < buckets.size() && buckets[started].missing == 0) start(buckets[started++]);
}

void GradientAverage::State::start(GradientBucket& bucket) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope("gradient average");
  bucket.under_way = group.start_all_reduce(packed(bucket));
}

GradientAverage::GradientAverage(Group& group, const std::vector<at::Tensor>& parameters,
                                 int64_t bucket_bytes) {
  if (group.size() == 1) return;
  const BelowDoor below;
  state_ = std::make_unique<State>(group, parameters, bucket_bytes);
}

GradientAverage::~GradientAverage() = default;

void GradientAverage::last_pass_begins(
    const std::function<bool(const at::Tensor& parameter)>& comes) {
  if (!state_ || state_->buckets.size() < 2) return;
  for (size_t i = 0; i < state_->buckets.size(); ++i) {
    for (const at::Tensor& parameter : state_->buckets[i].parameters) {
      const bool waited_for = comes(parameter);
      if (waited_for) ++state_->buckets[i].missing;
      state_->watch(parameter, i, waited_for);
    }
  }
}

void GradientAverage::finish() {
  if (!state_) return;
  state_->unwatch();
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope("gradient average");
  std::vector<GradientBucket>& buckets = state_->buckets;
  while (state_->started + 1 < buckets.size()) state_->start(buckets[state_->started++]);
  for (GradientBucket& bucket : buckets) {
    const at::Tensor all =
        bucket.under_way ? bucket.under_way->wait() : state_->group.all_reduce(packed(bucket));
    unpack(bucket, all.div_(state_->group.size()));
    bucket = {};
  }
}

}  // namespace oslo
