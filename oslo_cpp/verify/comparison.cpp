#include "oslo_cpp/verify/comparison.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <sstream>

namespace oslo {
namespace {

const char* kind_of(Comparison::Of of) {
  switch (of) {
    case Comparison::Of::weight:
      return "weight";
    case Comparison::Of::operation:
      return "operator";
    case Comparison::Of::output:
      return "output";
    case Comparison::Of::buffer:
      return "buffer";
    case Comparison::Of::gradient:
      return "gradient";
  }
  return "";
}

std::string short_number(double value) {
  std::ostringstream text;
  text << std::setprecision(3) << value;
  return text.str();
}

double tolerance_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
    case at::kComplexDouble:
      return std::sqrt(0x1p-52);
    case at::kFloat:
    case at::kComplexFloat:
      return std::sqrt(0x1p-23);
    case at::kHalf:
      return std::sqrt(0x1p-10);
    case at::kBFloat16:
      return std::sqrt(0x1p-7);
    default:
      return 0;
  }
}

at::Tensor as_numbers(const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
  return real.to(at::kCPU, at::kDouble);
}

double largest(const at::Tensor& magnitudes) {
  return magnitudes.numel() == 0 ? 0 : magnitudes.max().item<double>();
}

/// Name and largest error of what is compared under one heading.
struct Summary {
  int64_t count = 0;
  int64_t different = 0;
  const Comparison* worst = nullptr;

  void add(const Comparison& comparison) {
    ++count;
    if (!comparison.equal()) ++different;
    if (worst == nullptr || comparison.error > worst->error) worst = &comparison;
  }

  std::string to_string() const {
    std::string text = c10::str(count, " compared, ");
    if (different > 0) text += c10::str(different, " DIFFERENT, ");
    return text + "largest error " + short_number(worst->error);
  }
};

}  // namespace

std::string Comparison::to_string() const {
  std::string text = kind_of(of);
  if (of == Of::operation || of == Of::output) text += c10::str(" ", index);
  if (!name.empty()) text += c10::str(of == Of::operation ? ", " : " ", name);
  if (of == Of::operation && !layer.empty()) text += " at layer " + layer;
  if (!remark.empty()) return text + ": " + remark;
  return text + ": differs by " + short_number(error) + " of the largest value, allowed is " +
         short_number(allowed) +
         (rounds_early ? "; to tell rounding from a mistake, verify in double: "
                         "to(torch::kFloat64) on both models before initialize"
                       : "");
}

const Comparison* Verification::own_first_difference() const {
  const auto found = std::find_if(comparisons_.begin(), comparisons_.end(),
                                  [](const Comparison& each) { return !each.equal(); });
  return found == comparisons_.end() ? nullptr : &*found;
}

std::string Verification::to_string() const {
  std::ostringstream text;
  text << (equal() ? "verify: the parallel model equals the reference\n"
                   : "verify: the parallel model DIFFERS from the reference\n");
  if (first_difference_) text << "  first difference: " << *first_difference_ << "\n";
  std::map<Comparison::Of, Summary> kinds;
  std::map<std::string, Summary> layers;
  std::vector<std::string> order;
  for (const Comparison& each : comparisons_) {
    kinds[each.of].add(each);
    if (each.of != Comparison::Of::operation) continue;
    if (layers.count(each.layer) == 0) order.push_back(each.layer);
    layers[each.layer].add(each);
  }
  for (const auto& [of, summary] : kinds) {
    text << "  " << std::left << std::setw(10) << c10::str(kind_of(of), "s") << summary.to_string();
    if (summary.worst->error > 0 && !summary.worst->name.empty()) {
      text << " (" << summary.worst->name << ")";
    }
    text << "\n";
  }
  if (unmatched_ > 0) {
    text << "  " << unmatched_ << " operators were called by only one of the two and left out\n";
  }
  size_t width = 0;
  for (const std::string& layer : order) width = std::max(width, layer.size());
  if (!order.empty()) text << "  operators from one layer's parameters to the next:\n";
  for (const std::string& layer : order) {
    text << "    " << std::left << std::setw(static_cast<int>(width) + 2)
         << (layer.empty() ? "-" : layer) << layers[layer].to_string() << "\n";
  }
  return text.str();
}

void compare(Comparison& into, const at::Tensor& actual, const at::Tensor& reference,
             double tolerance, double least_scale, double noise) {
  into.error = 0;
  into.allowed = 0;
  if (actual.scalar_type() != reference.scalar_type()) {
    into.remark = c10::str(actual.scalar_type(), " in place of ", reference.scalar_type());
    return;
  }
  if (actual.sizes() != reference.sizes()) {
    into.remark = c10::str("shape ", actual.sizes(), " in place of ", reference.sizes());
    return;
  }
  const double of_dtype = tolerance_of(reference.scalar_type());
  into.allowed = tolerance > 0 && of_dtype > 0 ? tolerance : of_dtype;
  into.rounds_early = of_dtype > tolerance_of(at::kDouble);
  const at::Tensor a = as_numbers(actual), b = as_numbers(reference);
  // Infinities that are equal differ by not-a-number.
  const at::Tensor same = a.eq(b).logical_or(a.isnan().logical_and(b.isnan()));
  const double difference = largest((a - b).abs().masked_fill(same, 0).nan_to_num(INFINITY));
  if (difference == 0) return;
  double scale = std::max(largest(b.abs().nan_to_num(0, 0, 0)), least_scale);
  if (into.allowed > 0) scale = std::max(scale, noise / into.allowed);
  if (scale == 0 || of_dtype == 0) scale = 1;
  into.error = difference / scale;
}

}  // namespace oslo
