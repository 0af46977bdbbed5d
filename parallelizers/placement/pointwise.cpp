#include "parallelizers/placement/pointwise.h"

#include <c10/core/GradMode.h>

#include "parallelizers/placement/in_place.h"
#include "parallelizers/placement/placed_tensor.h"

namespace oslo {
namespace {

/// Whether a plain tensor can stand beside values of `layout` and `dims` dimensions as it is: it
/// has no gradient to reduce, and nothing to cut.
bool fits_beside(const at::Tensor& plain, const Layout& layout, int64_t dims) {
  if (plain.requires_grad() && c10::GradMode::is_enabled()) return false;
  if (plain.dim() > dims) return false;
  for (int axis = 0; axis < layout.axes(); ++axis) {
    if (layout[axis].whole()) continue;
    const int64_t dim = layout[axis].dim - (dims - plain.dim());
    if (dim >= 0 && plain.size(dim) != 1) return false;
  }
  return true;
}

}  // namespace

DimensionMap pointwise_map(c10::ArrayRef<Value> operands) {
  int64_t dims = 0;
  for (const Value& operand : operands) dims = std::max(dims, operand.dim());
  const std::string all = letters(dims);
  DimensionMap map;
  map.results = {all};
  // Where all have one element nothing stretches, and a cut (one row over two ranks) may stay.
  c10::SmallVector<int64_t, 6> longest(dims, 1);
  for (const Value& operand : operands) {
    for (int64_t d = 0; d < operand.dim(); ++d) {
      if (operand.size(d) != 1) longest[dims - operand.dim() + d] = operand.size(d);
    }
  }
  for (const Value& operand : operands) {
    const int64_t missing = dims - operand.dim();
    std::string own = all.substr(missing);
    for (int64_t d = 0; d < operand.dim(); ++d) {
      if (operand.size(d) == 1 && longest[missing + d] != 1) own[d] = '-';
    }
    map.operands.push_back(std::move(own));
  }
  return map;
}

void run_pointwise(Call& call) {
  if (call.op().in_place) {
    run_pointwise_in_place(call);
  } else {
    call.run(pointwise_map(call.operands()));
  }
}

bool run_pointwise_fast(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  LayoutPtr layout;
  int64_t dims = 0;
  bool plain = false;
  for (size_t i = 0; i < op.arguments; ++i) {
    const c10::IValue& argument = stack[base + i];
    if (argument.isTensorList() || argument.isOptionalTensorList()) return false;
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor& tensor = argument.toTensor();
    const PlacedTensorImpl* impl = placed_impl(tensor);
    if (impl == nullptr) {
      if (tensor.key_set().has(kPlacedKey)) return false;
      plain = true;
      continue;
    }
    if (impl->detached_view() || has_own_place_in_graph(tensor)) return false;
    const LayoutPtr& own = impl->value().layout;
    if (!layout) {
      layout = own;
      dims = impl->dim();
    } else if (impl->dim() != dims || !(own == layout || *own == *layout)) {
      return false;
    }
  }
  if (!layout) return false;
  if (plain) {
    for (size_t i = 0; i < op.arguments; ++i) {
      const c10::IValue& argument = stack[base + i];
      if (!argument.isTensor() || !argument.toTensor().defined()) continue;
      const at::Tensor& tensor = argument.toTensor();
      if (placed_impl(tensor) == nullptr && !fits_beside(tensor, *layout, dims)) return false;
    }
  }
  for (size_t i = 0; i < op.arguments; ++i) {
    c10::IValue& argument = stack[base + i];
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    if (const PlacedTensorImpl* impl = placed_impl(argument.toTensor())) {
      argument = c10::IValue(impl->value().local);
    }
  }
  const size_t below = base;
  {
    const BelowDoor guard;
    op.handle.callBoxed(&stack);
  }
  for (size_t i = below; i < stack.size(); ++i) {
    stack[i] = wrap({std::move(stack[i]).toTensor(), layout});
  }
  return true;
}

}  // namespace oslo
