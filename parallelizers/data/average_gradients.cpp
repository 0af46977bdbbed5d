#include "parallelizers/data/average_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>
#include <tuple>

#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

constexpr int64_t kBucketBytes = 25 * 1024 * 1024;

/// Gradients that travel together, and behind them, for each, how many ranks have it.
struct Bucket {
  std::vector<at::Tensor> parameters;
  int64_t bytes = 0;
};

/// As many elements as this rank's part of it has: replicas looked up other rows, so that an
/// average of sparse gradients is none to speak of.
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

void average(Group& group, const Bucket& bucket) {
  std::vector<at::Tensor> flat;
  std::vector<double> have;
  for (const at::Tensor& parameter : bucket.parameters) {
    flat.push_back(flat_gradient(parameter));
    have.push_back(parameter.grad().defined() ? 1 : 0);
  }
  flat.push_back(at::tensor(have, flat.front().options()));
  const at::Tensor all = group.all_reduce(at::cat(flat)).div_(group.size());
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

}  // namespace

void average_gradients(Group& group, const std::vector<at::Tensor>& parameters) {
  if (group.size() == 1) return;
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope("average_gradients");
  std::map<std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>, Bucket> open;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined() || !parameter.requires_grad() || !is_here(parameter)) continue;
    const c10::Device device = parameter.device();
    Bucket& bucket = open[{parameter.scalar_type(), device.type(), device.index()}];
    bucket.parameters.push_back(parameter);
    bucket.bytes += parameter.numel() * static_cast<int64_t>(parameter.element_size());
    if (bucket.bytes < kBucketBytes) continue;
    average(group, bucket);
    bucket = {};
  }
  for (const auto& [_, bucket] : open) {
    if (!bucket.parameters.empty()) average(group, bucket);
  }
}

}  // namespace oslo
