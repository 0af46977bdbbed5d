#include "parallelizers/memory/recompute/operator_flops.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "parallelizers/memory/recompute/kept_kinds.h"

namespace oslo::recompute {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

/// The tensors among an operator's arguments that have dimensions, in order.
std::vector<at::Tensor> operands(Arguments arguments) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& each : arguments) {
    if (each.isTensor() && each.toTensor().defined() && each.toTensor().dim() > 0) {
      tensors.push_back(each.toTensor());
    }
  }
  return tensors;
}

bool is_causal(const OperatorEntry& op, Arguments arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.schema->arguments()[i].name() == "is_causal") {
      return arguments[i].isBool() && arguments[i].toBool();
    }
  }
  return false;
}

/// Queries [.., Tq, D] by keys [.., Tk, D], and what comes of it by values [.., Tk, Dv].
double of_attention(const OperatorEntry& op, Arguments arguments) {
  const std::vector<at::Tensor> all = operands(arguments);
  if (all.size() < 3 || all[1].dim() < 2) return 0;
  const double widths = static_cast<double>(all[0].size(-1) + all[2].size(-1));
  const double scores =
      static_cast<double>(all[0].numel() / std::max<int64_t>(all[0].size(-1), 1)) *
      static_cast<double>(all[1].size(-2));
  return 2.0 * scores * widths * (is_causal(op, arguments) ? 0.5 : 1);
}

/// Every element of the result, or of the input where the convolution is transposed, meets a
/// filter.
double of_convolution(const OperatorEntry& op, Arguments arguments, const at::Tensor& result) {
  const std::vector<at::Tensor> all = operands(arguments);
  if (all.size() < 2 || all[1].size(0) == 0) return 0;
  bool transposed = op.name.find("transpose") != std::string::npos;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.schema->arguments()[i].name() == "transposed") transposed = arguments[i].toBool();
  }
  const double met = static_cast<double>(transposed ? all[0].numel() : result.numel());
  return 2.0 * met * static_cast<double>(all[1].numel() / all[1].size(0));
}

/// Exact for a product of two matrices: mk, kn and mn elements, mnk multiplications.
double of_equation(Arguments arguments, const at::Tensor& result) {
  double elements = static_cast<double>(result.numel());
  for (const at::Tensor& each : arguments[1].toTensorVector()) {
    elements *= static_cast<double>(each.numel());
  }
  return 2.0 * std::sqrt(elements);
}

/// The first operand of a product of matrices, in which each row meets each column once; that of
/// addmm and its like comes after what is added.
double of_product(const OperatorEntry& op, Arguments arguments, const at::Tensor& result) {
  const bool adds = op.name.starts_with("aten::add") || op.name.starts_with("aten::badd");
  const size_t first = adds ? 1 : 0;
  if (arguments.size() <= first) return 0;
  if (arguments[first].isString()) return of_equation(arguments, result);
  if (!arguments[first].isTensor()) return 0;
  const at::Tensor& a = arguments[first].toTensor();
  if (!a.defined() || a.dim() == 0) return 0;
  const int64_t batches = op.name.starts_with("aten::addbmm") ? a.size(0) : 1;
  return 2.0 * static_cast<double>(result.numel() * a.size(-1) * batches);
}

}  // namespace

double flops_of(const OperatorEntry& op, Arguments arguments, Arguments results) {
  if (results.empty() || !results[0].isTensor() || !results[0].toTensor().defined()) return 0;
  const at::Tensor& result = results[0].toTensor();
  if (is_of_kinds(op.name, {"attention"})) return of_attention(op, arguments);
  if (is_of_kinds(op.name, {"convolution"})) return of_convolution(op, arguments, result);
  if (is_of_kinds(op.name, {"matmul"})) return of_product(op, arguments, result);
  return 0;
}

}  // namespace oslo::recompute
