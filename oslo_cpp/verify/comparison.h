#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace oslo {

/// One pair of values that ought to be equal.
struct Comparison {
  enum class Of { weight, operation, output, buffer, gradient };
  Of of;
  std::string name;   ///< of the parameter or buffer, the operator ("aten::gelu"), the output
  std::string layer;  ///< "h.0.mlp.c_fc": the layer, or the one whose parameters were used last
  int64_t index;      ///< among its kind
  double error;       ///< largest difference, as a fraction of the reference's largest value
  double allowed;
  std::string remark;         ///< "shape [3, 4] in place of [3, 5]", if that is what differs
  bool rounds_early = false;  ///< computed in less than double

  bool equal() const { return remark.empty() && error <= allowed; }
  /// "operator 37, aten::gelu at layer h.0.mlp.c_fc: differs by 0.12 of the largest value, ..."
  std::string to_string() const;
};

/// What `verify` found.
class Verification {
 public:
  /// On all ranks.
  bool equal() const { return !first_difference_; }

  /// In the order of computing: weights, operators of the forward, outputs, buffers, gradients from
  /// the last parameter to the first. Of the rank where something differs first. Empty when equal.
  const std::optional<std::string>& first_difference() const { return first_difference_; }

  /// This rank's comparisons, in that order.
  const std::vector<Comparison>& comparisons() const { return comparisons_; }

  /// Operators that only one of the two called, which were left out.
  int64_t unmatched_operators() const { return unmatched_; }

  /// A summary by kind, and the layers of the forward with their largest errors.
  std::string to_string() const;

  // For `verify`.
  void add(Comparison comparison) { comparisons_.push_back(std::move(comparison)); }
  void set_unmatched_operators(int64_t count) { unmatched_ = count; }
  void set_first_difference(std::string text) { first_difference_ = std::move(text); }
  const Comparison* own_first_difference() const;

 private:
  std::vector<Comparison> comparisons_;
  std::optional<std::string> first_difference_;
  int64_t unmatched_ = 0;
};

/// Compares `actual` with `reference` (both whole). The error is relative to the reference's
/// largest finite value, or to `least_scale` if that is larger; not-a-number equals not-a-number.
/// `tolerance` 0: by dtype, the square root of its machine epsilon (half of the digits: sums in
/// another order lose a few, a wrong placement loses all); integers must be equal. `noise`: an
/// absolute difference that is allowed beside, since sums that cancel leave nothing else.
void compare(Comparison& into, const at::Tensor& actual, const at::Tensor& reference,
             double tolerance, double least_scale = 0, double noise = 0);

}  // namespace oslo
