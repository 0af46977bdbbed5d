#include "parallelizers/data/sharded/shard_copies.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "parallelizers/data/exchange/gradient_exchange.h"
#include "parallelizers/data/exchange/step_exchange.h"
#include "parallelizers/libtorch/graph_pass.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/libtorch/live_hooks.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

constexpr char kOverCopies[] = "zero";

/// What a program assigned (`p.mutable_grad() = p.grad() * 0.5`) is a value of the global shape.
void take_assigned(const at::Tensor& part) {
  at::Tensor& gradient = part.mutable_grad();
  if (!gradient.defined() || placed_impl(gradient) == nullptr) return;
  gradient = marked_gradient(local_in(gradient, layouts_of(part).gradient), part);
}

bool has_hooks(const at::Tensor& part) {
  namespace impl = torch::autograd::impl;
  if (!part.requires_grad()) return false;
  if (has_live_hooks(part) || impl::post_acc_grad_hooks(part) != nullptr) return true;
  const auto node = impl::try_get_grad_accumulator(part);
  return node && (!node->pre_hooks().empty() || !node->post_hooks().empty());
}

}  // namespace

void ShardCopies::gradients_come(std::function<void()> then) {
  if (!copies_ || !synchronizes_ || pass_hands_gradients_out()) return;
  const int pass = torch::autograd::get_current_graph_task_id();
  if (std::exchange(pass_, pass) == pass) return;
  at_end_of_pass(EndOfPass::copies, std::move(then));
}

void ShardCopies::average(const std::vector<at::Tensor>& parts) const {
  if (!copies_) return;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& part : parts) {
    if (!part.requires_grad()) continue;
    take_assigned(part);
    trained.push_back(part);
  }
  if (trained.empty()) return;
  const GradientExchange exchange(*copies_, trained, kOverCopies);
  std::vector<BucketExchange> buckets;
  constexpr int64_t kBytes = StepExchange::kBucketBytes;
  for (const auto& numbers : gradient_buckets(trained, kBytes, kBytes)) {
    std::vector<at::Tensor> together;
    for (const size_t number : numbers) together.push_back(trained[number]);
    buckets.emplace_back(exchange, std::move(together), /*asks=*/true);
  }
  for (BucketExchange& bucket : buckets) bucket.start(/*awaited=*/&bucket == &buckets.back());
  for (BucketExchange& bucket : buckets) bucket.finish();
}

bool ShardCopies::are_seen(const std::vector<at::Tensor>& parts) const {
  if (!copies_) return false;
  return pass_hands_gradients_out() || std::any_of(parts.begin(), parts.end(), has_hooks);
}

at::Tensor ShardCopies::averaged(const at::Tensor& flat) const {
  const GradientExchange exchange(*copies_, {}, kOverCopies);
  return exchange.start({flat, {}}, /*awaited=*/true).wait();
}

}  // namespace oslo
