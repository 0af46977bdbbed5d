#include "parallelizers/data/exchange/gradient_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/transport/presence/pending.h"
#include "parallelizers/data/exchange/travel_type.h"
#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/keys.h"

namespace oslo {

c10::ScalarType travel_type(Group& group, c10::ScalarType type) {
  const auto* counted = dynamic_cast<const CountedProcessGroup*>(group.process_group().get());
  const auto asked = counted == nullptr ? std::nullopt : counted->gradients_travel_in();
  return asked && c10::elementSize(*asked) < c10::elementSize(type) ? *asked : type;
}

GradientExchange::GradientExchange(Group& group, const std::vector<at::Tensor>& parameters,
                                   const char* rule)
    : group_(group), rule_(rule) {
  for (const at::Tensor& parameter : parameters) {
    strategy_for(parameter);
    const GradientSharePtr share = gradient_share(parameter);
    OSLO_CHECK(!share || share->replicas->ranks() == group.ranks(), "ZeroOptimizer shares ",
               share->name, " out over the ranks ", share->replicas->ranks(),
               ", and gradients are averaged over ", group.ranks(),
               "; make DistributedDataParallel over parallel.mpu().data_group()");
  }
}

Pending GradientExchange::start(const GradientBucket& bucket, bool awaited) const {
  // Parts of more ranks than rows; Gloo takes no empty tensor.
  if (bucket.flat.numel() == 0) return Pending(bucket.flat);
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(rule_);
  at::Tensor addends = bucket.flat;
  addends.div_(
      group_.size());  // before the sum, as LibTorch's DDP does: a half type would overflow
  const GradientStrategy& strategy = strategy_for(bucket);
  const c10::ScalarType type = addends.scalar_type();
  const c10::ScalarType travels_in = travel_type(group_, type);
  if (travels_in == type) return strategy.start(group_, bucket, awaited);
  return strategy
      .start(group_, {addends.to(travels_in), bucket.parameters, bucket.of_rank}, awaited)
      .then([type](at::Tensor sum) { return sum.to(type); });
}

void BucketExchange::start(bool awaited) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  had_.clear();
  for (const at::Tensor& parameter : parameters_) had_.push_back(has_new_gradient(parameter));
  const GradientStrategy& strategy = strategy_for(parameters_.front());
  under_way_ = exchange_.start(strategy.pack(exchange_.group(), parameters_, asks_), awaited);
}

void BucketExchange::finish() {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor result = std::exchange(under_way_, std::nullopt)->wait();
  strategy_for(parameters_.front()).unpack(exchange_.group(), result, parameters_, had_, asks_);
}

std::vector<std::vector<size_t>> gradient_buckets(const std::vector<at::Tensor>& parameters,
                                                  int64_t first_bytes, int64_t bytes) {
  struct Open {
    std::vector<size_t> numbers = {};
    int64_t bytes = 0;
    bool first = true;
  };
  std::vector<std::vector<size_t>> full;
  std::map<std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex, bool>, Open> open;
  for (size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters[i];
    const c10::Device device = parameter.device();
    const c10::ScalarType type = gradient_type(parameter);
    const bool shared = gradient_share(parameter) != nullptr;
    Open& bucket = open[{type, device.type(), device.index(), shared}];
    bucket.numbers.push_back(i);
    bucket.bytes += parameter.numel() * static_cast<int64_t>(c10::elementSize(type));
    if (bucket.bytes < (bucket.first ? first_bytes : bytes)) continue;
    full.push_back(std::move(bucket.numbers));
    bucket = {.first = false};
  }
  for (auto& [_, bucket] : open) {
    if (!bucket.numbers.empty()) full.push_back(std::move(bucket.numbers));
  }
  return full;
}

}  // namespace oslo
