#include "parallelizers/memory/recompute/kept_kinds.h"

#include <algorithm>
#include <string_view>

#include "mpu/base/error.h"

namespace oslo::recompute {
namespace {

struct Kind {
  std::string_view name;
  std::vector<std::string_view> operators;
};

/// Names without overloads. Ends in "*": what begins so.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"matmul",
       {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::matmul",
        "aten::linear", "aten::mv", "aten::addmv", "aten::dot", "aten::einsum"}},
      {"convolution",
       {"aten::convolution", "aten::_convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d",
        "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"}},
      {"attention", {"aten::scaled_dot_product_attention", "aten::_scaled_dot_product_*"}},
  };
  return all;
}

}  // namespace

std::vector<std::string> kinds_to_keep() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.emplace_back(kind.name);
  return names;
}

void check_kind(const std::string& kind) {
  const bool known = std::any_of(kinds().begin(), kinds().end(),
                                 [&](const Kind& each) { return each.name == kind; });
  OSLO_CHECK_AS(
      config, known, "\"", kind,
      "\" is no kind of operators that can be kept when "
      "activations are computed again: \"matmul\", \"convolution\" and \"attention\" are");
}

OfKinds::OfKinds(const std::vector<std::string>& asked) {
  for (const Kind& kind : kinds()) {
    if (std::find(asked.begin(), asked.end(), kind.name) == asked.end()) continue;
    for (const std::string_view name : kind.operators) {
      if (name.ends_with('*')) {
        beginnings_.emplace_back(name.substr(0, name.size() - 1));
      } else {
        names_.emplace(name);
      }
    }
  }
}

bool OfKinds::operator()(const std::string& op) const {
  const size_t overload = op.find('.');
  return names_.count(overload == std::string::npos ? op : op.substr(0, overload)) != 0 ||
         std::any_of(beginnings_.begin(), beginnings_.end(),
                     [&](const std::string& beginning) { return op.starts_with(beginning); });
}

bool is_of_kinds(const std::string& op, const std::vector<std::string>& asked) {
  return OfKinds(asked)(op);
}

}  // namespace oslo::recompute
