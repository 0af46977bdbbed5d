#include "parallelizers/placement/pointwise.h"

#include <c10/core/GradMode.h>

#include <array>
#include <utility>

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
  constexpr size_t kMost = 4;
  std::array<size_t, kMost> placed;
  std::array<const at::Tensor*, kMost> plain;
  size_t placed_count = 0, plain_count = 0;
  const PlacedTensorImpl* first = nullptr;
  const size_t base = stack.size() - op.arguments;
  for (size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) {
      if (stack[i].isTensorList() || stack[i].isOptionalTensorList()) return false;
      continue;
    }
    const at::Tensor& tensor = stack[i].toTensor();
    if (!tensor.defined()) continue;
    const PlacedTensorImpl* impl = placed_impl(tensor);
    if (impl == nullptr) {
      if (tensor.key_set().has(kPlacedKey) || plain_count == kMost) return false;
      plain[plain_count++] = &tensor;
      continue;
    }
    if (placed_count == kMost || impl->gathered_view() || has_own_place_in_graph(tensor)) {
      return false;
    }
    if (first == nullptr) {
      first = impl;
    } else if (impl->dim() != first->dim() ||
               (impl->value().layout != first->value().layout &&
                !(*impl->value().layout == *first->value().layout))) {
      return false;
    }
    placed[placed_count++] = i;
  }
  if (first == nullptr) return false;
  if (first->value().local.is_meta()) return false;
  for (size_t i = 0; i < plain_count; ++i) {
    if (!fits_beside(*plain[i], *first->value().layout, first->dim())) return false;
  }
  const c10::IValue held = std::move(stack[placed[0]]);
  stack[placed[0]] = first->value().local;
  for (size_t i = 1; i < placed_count; ++i) {
    stack[placed[i]] = c10::IValue(placed_impl(stack[placed[i]].toTensor())->value().local);
  }
  // No argument has the placed key any more: the call passes the door by itself.
  op.handle.callBoxed(&stack);
  for (size_t i = base; i < stack.size(); ++i) {
    stack[i] = wrap_like({std::move(stack[i]).toTensor(), first->value().layout}, *first);
  }
  return true;
}

}  // namespace oslo
