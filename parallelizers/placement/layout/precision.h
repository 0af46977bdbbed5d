#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace oslo {

/// The types that a model computes in, where the config speaks of them (docs/mixed-precision.md).
/// Micikevicius et al. 2018, arXiv 1710.03740, as PyTorch's autocast carries it out.
struct Precision {
  /// Operators of the forward run as under LibTorch's autocast of this type, `kBFloat16` or
  /// `kHalf`. Unset: as the program says.
  std::optional<c10::ScalarType> autocast;
  /// Parameters are kept in fp32; what operators read in a narrower type is one copy of each, made
  /// once after each write.
  bool master_weights = false;
  /// `kFloat`: half parameters that stay half get gradients in fp32 (plan/apply/wide_gradients.h),
  /// and gradients are averaged over data replicas in their type. A half type: half parameters keep
  /// gradients in their own, and wider gradients are averaged in this one.
  c10::ScalarType reduce = c10::kFloat;

  bool operator==(const Precision&) const = default;
};

/// "forward under autocast of bfloat16, ..."; empty where it says nothing.
std::string to_string(const Precision& precision);

}  // namespace oslo
