#include "oslo_cpp/scaling/scaled_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/data/gradient_elements.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

/// Elements of gradients, by what one kernel takes: a device and a type.
using Lists = std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, c10::ScalarType>,
                       std::vector<at::Tensor>>;

void add_to(Lists& lists, const at::Tensor& parameter) {
  at::Tensor elements = gradient_elements(parameter);
  if (elements.numel() == 0) return;  // a part of more ranks than rows
  if (elements.is_complex()) elements = at::view_as_real(elements);
  const c10::Device device = elements.device();
  lists[{device.type(), device.index(), elements.scalar_type()}].push_back(elements);
}

/// Reads each element once, and makes nothing of their size.
bool are_finite(const std::vector<at::Tensor>& tensors) {
  const auto largest = at::_foreach_norm(tensors, std::numeric_limits<double>::infinity());
  return at::isfinite(at::stack(largest)).all().item<bool>();
}

/// The factor is PyTorch's, bit for bit.
bool unscale_all(const std::vector<at::Tensor>& tensors, double scale) {
  const at::TensorOptions numbers = at::TensorOptions(at::kFloat).device(tensors.front().device());
  at::Tensor found = at::zeros({}, numbers);
  at::_amp_foreach_non_finite_check_and_unscale_(
      tensors, found, at::full({}, static_cast<float>(1.0 / scale), numbers));
  return found.item<float>() == 0;
}

template <typename Use>
void for_each_gradient(torch::optim::Optimizer& optimizer, const Use& use) {
  std::set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const bool first = parameter.defined() && seen.insert(parameter.unsafeGetTensorImpl()).second;
      if (first && parameter.grad().defined()) use(parameter);
    }
  }
}

/// What a rank has found out, in numbers of which all need the largest.
struct Findings {
  bool overflow = false;
  bool any = false;
  int64_t half = 0;  ///< the rank behind this one's number, of one with gradients of half precision
  double smallest_scale = 0, largest_scale = 0;
};

Findings of_all(Group& ranks, const Findings& own) {
  const RuleScope scope("gradient scaler");
  const at::Tensor message = ranks.all_reduce(
      at::tensor({own.overflow ? 1.0 : 0.0, own.any ? 1.0 : 0.0, static_cast<double>(own.half),
                  -own.smallest_scale, own.largest_scale},
                 at::kDouble),
      Reduction::max);
  const double* const all = message.const_data_ptr<double>();
  return {all[0] > 0, all[1] > 0, static_cast<int64_t>(all[2]), -all[3], all[4]};
}

}  // namespace

ScaledGradients::ScaledGradients(const std::vector<std::shared_ptr<torch::nn::Module>>& models,
                                 std::shared_ptr<Group> ranks)
    : ranks_(std::move(ranks)) {
  const auto add = [&](const std::string& name, const at::Tensor& parameter) {
    if (!parameter.defined()) return;
    const bool first = numbers_.emplace(parameter.unsafeGetTensorImpl(), parameters_.size()).second;
    if (first) parameters_.push_back({name, parameter});
  };
  for (const auto& model : models) {
    // What forwards compute with, and what is registered: an optimizer has the latter.
    const ModelView view(model);
    for (const ParameterView& parameter : view.parameters()) {
      add(parameter.path, parameter.registered);
      if (parameter.member != nullptr) add(parameter.path, *parameter.member);
    }
  }
}

void ScaledGradients::check_own(torch::optim::Optimizer& optimizer) const {
  for (size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    const auto& parameters = optimizer.param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].defined()) continue;
      OSLO_CHECK(
          numbers_.contains(parameters[i].unsafeGetTensorImpl()), "GradScaler: parameter ", i,
          " of group ", group, " of the optimizer, of shape ", parameters[i].sizes(),
          ", is none of the models that the scaler was made for, so that no verdict has seen its "
          "gradient; hand all models of the program to one scaler: oslo::GradScaler scaler({&a, "
          "&b})");
    }
  }
}

bool ScaledGradients::all_finite(double scale, torch::optim::Optimizer& optimizer) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  Findings own{.smallest_scale = scale, .largest_scale = scale};
  Lists unscaled, others;
  std::set<const c10::TensorImpl*> of_optimizer;
  for_each_gradient(optimizer, [&](const at::Tensor& parameter) {
    of_optimizer.insert(parameter.unsafeGetTensorImpl());
  });
  std::string half;
  for (const NamedTensor& each : parameters_) {
    const at::Tensor& parameter = each.tensor;
    if (!parameter.grad().defined()) continue;
    own.any = true;
    if (parameter.grad().scalar_type() == at::kHalf && half.empty()) half = each.name;
    add_to(of_optimizer.contains(parameter.unsafeGetTensorImpl()) ? unscaled : others, parameter);
  }
  if (!half.empty()) own.half = ranks_->rank() + 1;
  for (const auto& [_, tensors] : others) own.overflow |= !are_finite(tensors);
  for (const auto& [_, tensors] : unscaled) {
    if (half.empty()) own.overflow |= !unscale_all(tensors, scale);
  }
  const Findings all = of_all(*ranks_, own);
  OSLO_CHECK(all.smallest_scale == all.largest_scale, "GradScaler: ranks have scales between ",
             all.smallest_scale, " and ", all.largest_scale,
             "; call update and load_state_dict on every rank, with the same numbers");
  OSLO_CHECK(
      all.half == 0, "GradScaler: attempting to unscale float16 gradients: ",
      half.empty() ? c10::str("rank ", ranks_->ranks()[all.half - 1], " has some")
                   : "that of " + half,
      ". What scaling saves would be lost; keep parameters in float32 and compute in float16 "
      "(autocast, or \"master_weights\": true in the config)");
  OSLO_CHECK(all.any,
             "GradScaler: no inf checks were recorded: no parameter of the models has a "
             "gradient on any rank; call scaler.scale(loss).backward() first");
  return !all.overflow;
}

void ScaledGradients::unscale(double scale, torch::optim::Optimizer& optimizer) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  Lists lists;
  for_each_gradient(optimizer, [&](const at::Tensor& parameter) { add_to(lists, parameter); });
  for (const auto& [_, tensors] : lists) unscale_all(tensors, scale);
}

}  // namespace oslo
