#include "parallelizers/placement/layout/precision.h"

namespace oslo {
namespace {

std::string name_of(c10::ScalarType type) {
  switch (type) {
    case c10::kBFloat16:
      return "bfloat16";
    case c10::kHalf:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace

std::string to_string(const Precision& precision) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (precision.autocast) add("forward under autocast of " + name_of(*precision.autocast));
  if (precision.master_weights) add("parameters kept in float32 (master weights)");
  if (precision.reduce != c10::kFloat) {
    add("gradients of half parameters added up in their type, gradients averaged over replicas "
        "in " +
        name_of(precision.reduce));
  } else if (!text.empty()) {
    add("gradients and partial sums added up in float32");
  }
  return text;
}

}  // namespace oslo
