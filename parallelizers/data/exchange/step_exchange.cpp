#include "parallelizers/data/exchange/step_exchange.h"

#include <ATen/ATen.h>

#include <mutex>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/data/exchange/gradient_exchange.h"
#include "parallelizers/data/exchange/gradient_watch.h"
#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

std::vector<at::Tensor> trained_here(std::vector<at::Tensor> parameters) {
  std::erase_if(parameters, [](const at::Tensor& parameter) {
    return !parameter.defined() || !parameter.requires_grad() || !is_here(parameter) ||
           is_sharded(parameter);
  });
  return parameters;
}

}  // namespace

struct StepExchange::State {
  State(Group& group, const std::vector<at::Tensor>& parameters, int64_t bucket_bytes) {
    const GradientExchange exchange(group, parameters, "gradient average");
    for (const auto& numbers : gradient_buckets(parameters, bucket_bytes, bucket_bytes)) {
      std::vector<at::Tensor> together;
      for (const size_t number : numbers) together.push_back(parameters[number]);
      for (const at::Tensor& each : together) hold_part(each, true);
      buckets.emplace_back(exchange, std::move(together), /*asks=*/true);
    }
    missing.resize(buckets.size(), 0);
  }

  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void came(size_t bucket, bool& once);

  std::vector<BucketExchange> buckets;
  std::vector<size_t> missing;  ///< of each: gradients that the last pass may still give
  size_t started = 0;           ///< of them, in their order, which is that of all ranks
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
  --missing[bucket];
  // The last one would set out at the end of the pass: whoever finishes waits for it at once.
  while (started + 1 < buckets.size() && missing[started] == 0) buckets[started++].start();
}

StepExchange::StepExchange(Group& group, const std::vector<at::Tensor>& parameters,
                           int64_t bucket_bytes) {
  if (group.size() == 1) return;
  const BelowDoor below;
  state_ = std::make_unique<State>(group, trained_here(parameters), bucket_bytes);
}

StepExchange::~StepExchange() = default;

StepExchange::State::~State() {
  for (const BucketExchange& bucket : buckets) {
    for (const at::Tensor& parameter : bucket.parameters()) hold_part(parameter, false);
  }
}

void StepExchange::last_pass_begins(const std::function<bool(const at::Tensor& parameter)>& comes) {
  if (!state_ || state_->buckets.size() < 2) return;
  for (size_t i = 0; i < state_->buckets.size(); ++i) {
    for (const at::Tensor& parameter : state_->buckets[i].parameters()) {
      const bool waited_for = comes(parameter);
      if (waited_for) ++state_->missing[i];
      state_->watch.add(parameter, [state = state_.get(), i, once = !waited_for]() mutable {
        state->came(i, once);
      });
    }
  }
}

void StepExchange::finish() {
  if (!state_) return;
  state_->watch.clear();
  std::vector<BucketExchange>& buckets = state_->buckets;
  while (state_->started + 1 < buckets.size()) buckets[state_->started++].start();
  for (BucketExchange& bucket : buckets) {
    if (!bucket.under_way()) bucket.start(/*awaited=*/true);
    bucket.finish();
  }
}

}  // namespace oslo
