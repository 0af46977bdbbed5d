#include "parallelizers/data/clip_grad_norm.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "mpu/base/error.h"
#include "parallelizers/data/gradient_elements.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The sum of |g|^p, or the largest |g|, over the gradients that are cut over the same groups.
struct Share {
  std::vector<Group*> over;
  double amount = 0;
};

class TotalNorm {
 public:
  explicit TotalNorm(double p) : p_(p) {}

  size_t share_of(const at::Tensor& parameter) {
    std::vector<Group*> over;
    const Mark* const own = mark_of(parameter);
    // Exchanged or not: a gradient that has been may be this rank's part of it.
    const at::Tensor& gradient = parameter.grad();
    const bool dense = gradient.defined() && !gradient.is_sparse();
    const Mark* const marked = dense ? mark_of(gradient) : nullptr;
    if (own != nullptr || marked != nullptr) {
      // Where another stage holds it, it is as the schedule has left it there.
      const bool staged = own != nullptr && own->layout->resident();
      const Layout& lies = marked != nullptr ? *marked->layout
                           : staged          ? *own->layouts.gradient
                                             : *own->layout;
      for (int axis = 0; axis < lies.axes(); ++axis) {
        Group* group = lies.group(axis).get();
        if (!lies[axis].whole() && group->size() > 1) over.push_back(group);
      }
    }
    if (const Mark* mark = own) {
      const auto pipeline = mark->layout->context()->pipeline();
      if (mark->layout->resident() && pipeline) over.push_back(pipeline.get());
    }
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (shares_[i].over == over) return i;
    }
    shares_.push_back({std::move(over)});
    return shares_.size() - 1;
  }

  void add(size_t share, double norm) { merge(shares_[share].amount, raised(norm)); }

  /// One message a group. Groups come in the order of the parameters, the same on all their ranks.
  double reduce() {
    std::vector<Group*> groups;
    for (const Share& share : shares_) {
      for (Group* group : share.over) {
        if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
      }
    }
    for (Group* group : groups) reduce_over(*group);
    double total = 0;
    for (const Share& share : shares_) merge(total, share.amount);
    return p_ == kInfinity ? total : std::pow(total, 1 / p_);
  }

 private:
  double raised(double norm) const { return p_ == kInfinity ? norm : std::pow(norm, p_); }

  void merge(double& into, double amount) const {
    if (p_ != kInfinity) {
      into += amount;
    } else if (std::isnan(amount) || amount > into) {
      into = amount;
    }
  }

  void reduce_over(Group& group) {
    const bool largest = p_ == kInfinity;
    std::vector<Share*> cut;
    std::vector<double> message;
    for (Share& share : shares_) {
      if (std::find(share.over.begin(), share.over.end(), &group) == share.over.end()) continue;
      cut.push_back(&share);
      // A maximum may lose a NaN on its way; it travels as a flag.
      const bool lost = largest && std::isnan(share.amount);
      message.push_back(lost ? 0 : share.amount);
      if (largest) message.push_back(lost ? 1 : 0);
    }
    const RuleScope scope("clip_grad_norm");
    const at::Tensor all = group.all_reduce(at::tensor(message, at::kDouble),
                                            largest ? Reduction::max : Reduction::sum);
    const double* result = all.const_data_ptr<double>();
    for (Share* share : cut) {
      share->amount = *result++;
      if (largest && *result++ > 0) share->amount = std::nan("");
    }
  }

  double p_;
  std::vector<Share> shares_;
};

/// Of a parameter that several pipeline stages have a copy of, the first one counts it.
bool is_counted_here(const at::Tensor& parameter) {
  const Mark* mark = mark_of(parameter);
  return mark == nullptr || !mark->layout->resident() ||
         mark->layout->context()->holds(StageSet::of(mark->layout->stages().first()));
}

/// Norms of `tensors`, with one wait for each device.
std::vector<double> norms_of(const std::vector<at::Tensor>& tensors, double p) {
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::vector<size_t>> by_device;
  std::vector<double> norms(tensors.size(), 0.0);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;  // a part of more ranks than rows
    by_device[{tensors[i].device().type(), tensors[i].device().index()}].push_back(i);
  }
  for (const auto& [_, indices] : by_device) {
    std::vector<at::Tensor> each;
    for (const size_t i : indices) {
      const bool small = tensors[i].element_size() < 4;  // half types would overflow at 65504
      each.push_back(at::linalg_vector_norm(tensors[i], p, std::nullopt, false,
                                            small ? std::make_optional(at::kFloat) : std::nullopt)
                         .to(at::kDouble));
    }
    const at::Tensor joined = at::stack(each).cpu();
    for (size_t k = 0; k < indices.size(); ++k) {
      norms[indices[k]] = joined.const_data_ptr<double>()[k];
    }
  }
  return norms;
}

}  // namespace

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  OSLO_CHECK(norm_type > 0, "clip_grad_norm_: norm_type is ", norm_type,
             "; it must be above 0 (infinity for the largest absolute value)");
  OSLO_CHECK(max_norm >= 0, "clip_grad_norm_: max_norm is ", max_norm, "; it must not be negative");
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  TotalNorm total(norm_type);
  std::vector<at::Tensor> elements;
  constexpr size_t kNotCounted = std::numeric_limits<size_t>::max();
  std::vector<size_t> shares;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined()) continue;
    // Before looking for a gradient: every rank must see the same groups in the same order.
    const size_t share = total.share_of(parameter);
    if (!parameter.grad().defined()) continue;
    elements.push_back(gradient_elements(parameter));
    shares.push_back(is_counted_here(parameter) ? share : kNotCounted);
  }
  const std::vector<double> norms = norms_of(elements, norm_type);
  for (size_t i = 0; i < norms.size(); ++i) {
    if (shares[i] != kNotCounted) total.add(shares[i], norms[i]);
  }
  const double norm = total.reduce();
  OSLO_CHECK(!error_if_nonfinite || std::isfinite(norm), "clip_grad_norm_: the norm of order ",
             norm_type, " of the gradients is ", norm, ", so they cannot be clipped");
  const double scale = max_norm / (norm + 1e-6);
  if (!(scale >= 1)) {
    for (const at::Tensor& gradient : elements) gradient.mul_(scale);
  }
  return norm;
}

}  // namespace oslo
