#include "parallelizers/data/exchange/step_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <optional>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/presence/pending.h"
#include "parallelizers/data/exchange/gradient_exchange.h"
#include "parallelizers/data/exchange/gradient_watch.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

/// Parameters whose gradients travel together.
struct StepBucket {
  std::vector<at::Tensor> parameters = {};
  size_t missing = 0;  ///< that the last pass may still give
  std::optional<Pending> under_way = {};
};

namespace {

at::Tensor plain_gradient(const at::Tensor& gradient) {
  return mark_of(gradient) != nullptr ? unmarked_alias(gradient) : gradient.detach();
}

/// As many elements as this rank's part of it has.
at::Tensor flat_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined()) {
    return at::zeros({parameter.numel()},
                     at::TensorOptions(gradient_type(parameter)).device(parameter.device()));
  }
  return (gradient.is_sparse() ? gradient.to_dense() : plain_gradient(gradient)).reshape({-1});
}

void set_gradient(const at::Tensor& parameter, const at::Tensor& average) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && !gradient.is_sparse()) {
    plain_gradient(gradient).copy_(average.view(gradient.sizes()));
  } else {
    gradient = average.view(parameter.sizes()).clone();
  }
}

/// The gradients, and behind them, for each, how many ranks have it.
at::Tensor packed(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> flat;
  std::vector<double> have;
  for (const at::Tensor& parameter : parameters) {
    flat.push_back(flat_gradient(parameter));
    have.push_back(parameter.grad().defined() ? 1 : 0);
  }
  flat.push_back(at::tensor(have).to(flat.front().options()));  // which it makes no halves of
  return at::cat(flat);
}

void unpack(const std::vector<at::Tensor>& parameters, const at::Tensor& all) {
  const auto number = static_cast<int64_t>(parameters.size());
  const at::Tensor had = all.narrow(0, all.numel() - number, number).to(at::kCPU, at::kDouble);
  int64_t start = 0;
  for (int64_t i = 0; i < number; ++i) {
    const at::Tensor& parameter = parameters[i];
    const at::Tensor own = all.narrow(0, start, parameter.numel());
    start += parameter.numel();
    if (had.const_data_ptr<double>()[i] > 0) set_gradient(parameter, own);
  }
}

std::vector<at::Tensor> trained_here(std::vector<at::Tensor> parameters) {
  std::erase_if(parameters, [](const at::Tensor& parameter) {
    return !parameter.defined() || !parameter.requires_grad() || !is_here(parameter) ||
           is_sharded(parameter);
  });
  return parameters;
}

}  // namespace

struct StepExchange::State {
  State(Group& group, const std::vector<at::Tensor>& parameters, int64_t bucket_bytes)
      : exchange(group, parameters, "gradient average") {
    for (const auto& numbers : gradient_buckets(parameters, bucket_bytes, bucket_bytes)) {
      StepBucket& bucket = buckets.emplace_back();
      for (const size_t number : numbers) bucket.parameters.push_back(parameters[number]);
    }
  }

  void came(size_t bucket, bool& once);
  Pending start(const StepBucket& bucket, bool awaited = false) const;

  GradientExchange exchange;
  std::vector<StepBucket> buckets;
  size_t started = 0;  ///< of them, in their order, which is that of all ranks
  std::mutex mutex;
  GradientWatch watch;
};

void StepExchange::State::came(size_t bucket, bool& once) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (std::exchange(once, true)) {
    OSLO_CHECK(bucket >= started,
               "a parameter got another gradient in the last backward pass of a step, when its "
               "average over data replicas was under way; call backward once in a micro-batch");
    return;
  }
  --buckets[bucket].missing;
  // The last one would set out at the end of the pass: whoever finishes waits for it at once.
  while (started + 1 < buckets.size() && buckets[started].missing == 0) {
    StepBucket& next = buckets[started++];
    next.under_way = start(next);
  }
}

Pending StepExchange::State::start(const StepBucket& bucket, bool awaited) const {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  return exchange.start({packed(bucket.parameters), bucket.parameters}, awaited);
}

StepExchange::StepExchange(Group& group, const std::vector<at::Tensor>& parameters,
                           int64_t bucket_bytes) {
  if (group.size() == 1) return;
  const BelowDoor below;
  state_ = std::make_unique<State>(group, trained_here(parameters), bucket_bytes);
}

StepExchange::~StepExchange() = default;

void StepExchange::last_pass_begins(const std::function<bool(const at::Tensor& parameter)>& comes) {
  if (!state_ || state_->buckets.size() < 2) return;
  for (size_t i = 0; i < state_->buckets.size(); ++i) {
    for (const at::Tensor& parameter : state_->buckets[i].parameters) {
      const bool waited_for = comes(parameter);
      if (waited_for) ++state_->buckets[i].missing;
      state_->watch.add(parameter, [state = state_.get(), i, once = !waited_for]() mutable {
        state->came(i, once);
      });
    }
  }
}

void StepExchange::finish() {
  if (!state_) return;
  state_->watch.clear();
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  std::vector<StepBucket>& buckets = state_->buckets;
  while (state_->started + 1 < buckets.size()) {
    StepBucket& next = buckets[state_->started++];
    next.under_way = state_->start(next);
  }
  for (StepBucket& bucket : buckets) {
    Pending under_way = bucket.under_way ? *std::exchange(bucket.under_way, std::nullopt)
                                         : state_->start(bucket, /*awaited=*/true);
    unpack(bucket.parameters, under_way.wait());
    for (const at::Tensor& parameter : bucket.parameters) state_->exchange.keep(parameter);
    bucket = {};
  }
}

}  // namespace oslo
