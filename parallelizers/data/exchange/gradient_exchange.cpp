#include "parallelizers/data/exchange/gradient_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "mpu/transport/counted_process_group.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
c10::ScalarType travel_type(Group& group, c10::ScalarType type) {
  const auto* counted = dynamic_cast<const CountedProcessGroup*>(group.process_group().get());
  const auto asked = counted == nullptr ? std::nullopt : counted->gradients_travel_in();
  return asked && c10::elementSize(*asked) < c10::elementSize(type) ? *asked : type;
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
  const c10::ScalarType type = addends.scalar_type();
  const c10::ScalarType travels_in = travel_type(group_, type);
  if (travels_in == type) return strategy_.start(group_, bucket, awaited);
  return strategy_.start(group_, {addends.to(travels_in), bucket.parameters}, awaited)
      .then([type](at::Tensor sum) { return sum.to(type); });
}

void GradientExchange::keep(const at::Tensor& parameter) const {
  at::Tensor& gradient = parameter.mutable_grad();
  const Mark* const mark = mark_of(parameter);
  if (mark == nullptr || !gradient.defined()) return;
  const ParameterLayouts& layouts = mark->layouts;
  if (*layouts.gradient == *layouts.parameter) return mark_gradient(gradient, parameter);
  const Mark* const lies = mark_of(gradient);
  if (lies != nullptr && lies->layout == layouts.gradient) return;
  const BelowDoor below;
  const at::Tensor all = lies != nullptr ? unmarked_alias(gradient) : gradient.detach();
  gradient = marked_gradient(strategy_.kept(all, layouts), parameter);
}

std::vector<std::vector<size_t>> gradient_buckets(const std::vector<at::Tensor>& parameters,
                                                  int64_t first_bytes, int64_t bytes) {
  struct Open {
    std::vector<size_t> numbers = {};
    int64_t bytes = 0;
    bool first = true;
  };
  std::vector<std::vector<size_t>> full;
  std::map<std::tuple<c10::ScalarType, c10::DeviceType, c10::DeviceIndex>, Open> open;
  for (size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters[i];
    const c10::Device device = parameter.device();
    const c10::ScalarType type = gradient_type(parameter);
    Open& bucket = open[{type, device.type(), device.index()}];
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
