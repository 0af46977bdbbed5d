#include "oslo_cpp/verify/rounding_noise.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "parallelizers/placement/carrier/arguments.h"

namespace oslo {
namespace {

/// Units in the last place: sums of some thousand terms, in several steps.
constexpr double kUnits = 64;

/// Parts of the names of operators that add.
constexpr std::array<std::string_view, 16> kSums = {
    "sum",  "mean", "add", "sub", "mm",   "matmul", "linear", "conv",
    "norm", "dot",  "mv",  "var", "lerp", "std",    "einsum", "attention"};
/// Of those that add products.
constexpr std::array<std::string_view, 8> kContractions = {"mm",  "matmul", "linear", "conv",
                                                           "dot", "mv",     "einsum", "attention"};

template <size_t N>
bool has_part(const std::string& name, const std::array<std::string_view, N>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

double unit_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return 0x1p-52;
    case at::kHalf:
      return 0x1p-10;
    case at::kBFloat16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

bool rounds(const at::Tensor& tensor) {
  return (tensor.is_floating_point() || tensor.is_complex()) && tensor.numel() > 0 &&
         tensor.layout() == at::kStrided;
}

double largest_in(const at::Tensor& tensor) {
  return tensor.detach().abs().to(at::kDouble).nan_to_num(0, 0, 0).max().item<double>();
}

/// Whether a tensor is nothing but such an error.
bool is_noise(const at::Tensor& tensor, double noise) {
  return noise > std::sqrt(unit_of(tensor.scalar_type())) * largest_in(tensor);
}

}  // namespace

void RoundingNoise::enter(const std::string& name, c10::ArrayRef<c10::IValue> inputs) {
  left_ = sum_scale_ = 0;
  elements_ = 0;
  const bool sums = has_part(name, kSums), products = has_part(name, kContractions);
  double largest = 0, product = 1, unit = 0;
  int64_t terms = 1, operands = 0;
  for_each_tensor(inputs, [&](const at::Tensor& input) {
    if (!rounds(input)) return;
    const auto known = noise_.find(input.unsafeGetTensorImpl());
    if (known != noise_.end()) left_ = std::max(left_, known->second);
    if (!sums) return;
    const double own = largest_in(input);
    largest = std::max(largest, own);
    elements_ = std::max(elements_, input.numel());
    unit = std::max(unit, unit_of(input.scalar_type()));
    if (operands++ >= 2 || !products) return;
    product *= own;
    if (input.dim() > 0)
      terms = std::max(terms, input.numel() / std::max<int64_t>(1, input.size(0)));
  });
  if (!sums) return;
  if (products) largest = std::max(largest, product * std::sqrt(static_cast<double>(terms)));
  sum_scale_ = kUnits * unit * largest;
  for_each_tensor(inputs, [&](const at::Tensor& input) {
    double& noise = statistics_[input.unsafeGetTensorImpl()];
    noise = std::max(noise, sum_scale_);
  });
}

double RoundingNoise::leave(c10::ArrayRef<c10::IValue> outputs) {
  double noise = left_;
  for_each_tensor(outputs, [&](const at::Tensor& output) {
    if (!rounds(output)) return;
    const double terms = static_cast<double>(elements_) / static_cast<double>(output.numel());
    noise = std::max(noise, sum_scale_ * std::sqrt(std::max(1.0, terms)));
  });
  for_each_tensor(outputs, [&](const at::Tensor& output) {
    const auto* impl = output.unsafeGetTensorImpl();
    noise_.erase(impl);
    statistics_.erase(impl);
    if (rounds(output) && is_noise(output, noise)) noise_[impl] = noise;
  });
  return noise;
}

double RoundingNoise::in(const at::Tensor& tensor) const {
  const auto noise = noise_.find(tensor.unsafeGetTensorImpl());
  const auto statistics = statistics_.find(tensor.unsafeGetTensorImpl());
  return std::max(noise == noise_.end() ? 0 : noise->second,
                  statistics == statistics_.end() ? 0 : statistics->second);
}

}  // namespace oslo
