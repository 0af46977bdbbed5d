#include "parallelizers/placement/rules/parts.h"

#include <ATen/ATen.h>

#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/cuts/cut_requests.h"

namespace oslo {
namespace {

at::Tensor lent_elements(Lent what, at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor elements = at::zeros(sizes, options);
  if (what == Lent::zeros) return elements;
  return elements + at::linspace(0.5, 1.5, elements.numel(), options).view(sizes);
}

}  // namespace

at::Tensor joined(std::vector<at::Tensor> parts, int64_t dim) {
  if (parts.front().dim() != 1) return at::cat(parts, dim);
  for (at::Tensor& part : parts) part = part.unsqueeze(0);
  return at::cat(parts, 1).squeeze(0);
}

bool shows_parameter(const at::Tensor& tensor) {
  const PlacedTensorImpl* impl = placed_impl(tensor);
  return impl != nullptr ? GraphPlace::of(*impl).views_leaf() : mark_of(tensor) != nullptr;
}

std::vector<c10::IValue> on_elements(const DimensionMap& map, c10::ArrayRef<at::Tensor> local,
                                     const Call::LocalFunction& function, Lent what) {
  c10::SmallVector<at::Tensor, 4> operands(local.begin(), local.end());
  std::string lent;
  for (size_t i = 0; i < operands.size(); ++i) {
    at::Tensor& operand = operands[i];
    if (!operand.defined()) continue;
    for (int64_t d = 0; d < operand.dim(); ++d) {
      const char letter = map.operands[i][d];
      if (operand.size(d) != 0 || contains(map.whole, letter)) continue;
      std::vector<int64_t> sizes = operand.sizes().vec();
      sizes[d] = map.factor(i, letter);
      operand = joined({operand, lent_elements(what, sizes, operand.options())}, d);
      lent += letter;
    }
  }
  std::vector<c10::IValue> results = function(operands);
  if (lent.empty()) return results;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string& own = map.results[std::min(i, map.results.size() - 1)];
    for (size_t d = 0; d < own.size(); ++d) {
      if (contains(lent, own[d])) {
        // No view: a bias added in place would give its graph a node that is made later than the
        // other ranks make theirs, and the order of collectives follows the order of nodes.
        results[i] = results[i].toTensor().narrow(static_cast<int64_t>(d), 0, 0).clone();
      }
    }
  }
  return results;
}

void run_on_elements(Call& call, const DimensionMap& map) {
  wish_whole_units(map, call.operands());
  call.run(map, [&](c10::ArrayRef<at::Tensor> local) {
    return on_elements(map, local,
                       [&](c10::ArrayRef<at::Tensor> some) { return call.call_below(some); });
  });
}

void wish_whole_units(const DimensionMap& map, c10::ArrayRef<Value> operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const LayoutPtr& layout = operands[i].layout;
    for (int axis = 0; layout && axis < layout->axes(); ++axis) {
      const auto& [dim, cut] = (*layout)[axis];
      if (dim < 0) continue;
      const int64_t factor = map.factor(i, map.operands[i][dim]);
      if (factor != 1 && !cut->divided(factor)) wish_unit(*cut, factor);
    }
  }
}

}  // namespace oslo
