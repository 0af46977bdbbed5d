#include "oslo_cpp/step/step_counts.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

thread_local StepCounts::Scope* current = nullptr;

std::vector<at::Tensor> trained_here(std::vector<at::Tensor> parameters) {
  std::erase_if(parameters, [](const at::Tensor& parameter) {
    return !parameter.requires_grad() || !is_here(parameter);
  });
  return parameters;
}

}  // namespace

StepCounts::Scope::Scope(const void* schedule, StepCounts* counts, int micro_batch)
    : schedule_(schedule),
      counts_(counts),
      micro_batch_(micro_batch),
      outer_(std::exchange(current, this)) {}

StepCounts::Scope::~Scope() {
  current = outer_;
}

StepCounts::StepCounts(Group& replicas, std::vector<double> weights,
                       std::shared_ptr<CountedGradients>* gradients, const StepModels& models)
    : replicas_(replicas),
      weights_(std::move(weights)),
      gradients_(gradients),
      models_(models),
      counts_(weights_.size()) {}

CountedGradients& StepCounts::gradients() {
  if (!*gradients_) {
    *gradients_ =
        std::make_shared<CountedGradients>(trained_here(models_.parameters()), replicas_.size());
    (*gradients_)->step_begins();
  }
  return **gradients_;
}

at::Tensor StepCounts::in_loss(const void* schedule, const at::Tensor& loss_sum, const Count& count,
                               const std::optional<Count>& step_count) {
  OSLO_CHECK(current != nullptr && current->schedule_ == schedule,
             "counted_mean with a PipelineSchedule counts a micro-batch of its step; call it in "
             "the loss function (or criterion) of that schedule's forward_backward_step");
  OSLO_CHECK(loss_sum.defined() && loss_sum.numel() == 1,
             "counted_mean: the loss is not one number; pass this micro-batch's sum: loss.sum()");
  if (current->micro_batch_ < 0) return loss_sum * 1.0;
  OSLO_CHECK(std::isfinite(count.value()) && count.value() >= 0, "counted_mean: the count is ",
             count.value(), "; it must be finite and not negative");
  const auto call = static_cast<size_t>(current->calls_++);
  StepCounts& counts = *current->counts_;
  if (!step_count) return counts.add(loss_sum, count.value(), current->micro_batch_);
  return counts.add_whole(loss_sum, count.value(), step_count->value(), current->micro_batch_,
                          call);
}

at::Tensor StepCounts::add(const at::Tensor& loss_sum, double count, int micro_batch) {
  OSLO_CHECK(
      whole_.empty() && !counts_[micro_batch],
      "counted_mean: a second one in the loss of a micro-batch, and a step is divided by one "
      "count; give each its count of the step: counted_mean(loss_sum, count, schedule, "
      "step_count)");
  if (gradients_ != nullptr) gradients();
  counts_[micro_batch] = count;
  return loss_sum / weights_[micro_batch];
}

at::Tensor StepCounts::add_whole(const at::Tensor& loss_sum, double count, double step_count,
                                 int micro_batch, size_t call) {
  OSLO_CHECK(!counts_[micro_batch],
             "counted_mean: one with the count of its step beside one without; give it to both");
  OSLO_CHECK(std::isfinite(step_count) && step_count >= count, "counted_mean: the step count is ",
             step_count, ", and this micro-batch alone counts ", count,
             "; it is to be the sum over the micro-batches of this replica's step");
  if (call == whole_.size()) {
    whole_.push_back({step_count, of_replicas(step_count, "the count of a step")});
  }
  OSLO_CHECK(call < whole_.size() && whole_[call].own == step_count,
             "counted_mean: the count of the step is ", step_count,
             " in one micro-batch and another in one before; it is that of all of them");
  const double all = whole_[call].all;
  const double share = all > 0 ? replicas_.size() / all : 0;
  return loss_sum * (share / weights_[micro_batch]);
}

double StepCounts::of_replicas(double own, const char* what) {
  const RuleScope scope("counted mean");
  const c10::AutoGradMode no_grad(false);
  if (replicas_.size() == 1) return own;
  const at::Tensor all = replicas_.all_gather(at::full({1}, own, at::kDouble), 0,
                                              std::vector<int64_t>(replicas_.size(), 1));
  for (int64_t i = 0; i < all.numel(); ++i) {
    OSLO_CHECK(all.const_data_ptr<double>()[i] >= 0, "counted_mean: data rank ", i,
               " has not given ", what, "; call it alike on all of them");
  }
  return all.sum().item<double>();
}

void StepCounts::begin() {
  if (gradients_ != nullptr && *gradients_) (*gradients_)->step_begins();
}

at::Tensor StepCounts::end(const at::Tensor& loss) {
  const bool counted = std::any_of(counts_.begin(), counts_.end(),
                                   [](const auto& count) { return count.has_value(); });
  if (!counted) {
    if (gradients_ != nullptr && *gradients_) (*gradients_)->step_ends_uncounted(!whole_.empty());
    return loss;
  }
  double own = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    OSLO_CHECK(counts_[i], "counted_mean: the loss of micro-batch ", i,
               " is none, those of others of this step are; count all of them");
    own += *counts_[i];
  }
  counted_ = own;
  const c10::AutoGradMode no_grad(false);
  const double all = of_replicas(own, "its count");
  if (gradients_ != nullptr) gradients().step_ends(all);
  const RuleScope scope("counted mean");
  at::Tensor sum = loss.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  if (replicas_.size() > 1) sum = replicas_.all_reduce(sum.contiguous());
  return (sum / all).to(loss.scalar_type());
}

}  // namespace oslo
