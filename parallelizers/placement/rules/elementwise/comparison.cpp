#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <span>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/pointwise.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// Whether two views show the same elements of one storage.
bool same_elements(const Value& a, const Value& b) {
  return a.local.is_alias_of(b.local) && a.local.sizes() == b.local.sizes() &&
         a.local.strides() == b.local.strides() &&
         a.local.storage_offset() == b.local.storage_offset() && a.layout && b.layout &&
         *a.layout == *b.layout;
}

/// Every rank compares its parts; they are equal where all ranks' are.
bool all_equal(std::span<Value> operands) {
  const c10::AutoGradMode no_grad(false);
  resolve(pointwise_map(operands), operands);
  const LayoutPtr& layout = operands[0].layout;
  at::Tensor same = at::full({}, at::equal(operands[0].local, operands[1].local),
                             operands[0].local.options().dtype(at::kInt));
  for (int axis = 0; layout && axis < layout->axes(); ++axis) {
    if ((*layout)[axis].dim >= 0) same = layout->group(axis)->all_reduce(same, Reduction::min);
  }
  return same.item<int>() != 0;
}

/// A tensor is equal to itself
/// without a look, which is how torch::nn::MultiheadAttention tells self-attention, and so are
/// views of the same elements where this rank has only shapes.
void equal(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  if (operands[0].sizes() != operands[1].sizes()) return call.result_plain(false);
  if (call.tensor(0).is_same(call.tensor(1))) return call.result_plain(true);
  call.result_plain(call.read([&] { return all_equal(operands); },
                              [&]() -> std::optional<c10::IValue> {
                                if (same_elements(operands[0], operands[1])) return true;
                                return std::nullopt;
                              }));
}

}  // namespace

void add_comparison_rules(RuleTable& table) {
  table.add({"aten::equal"}, equal);
}

}  // namespace oslo
