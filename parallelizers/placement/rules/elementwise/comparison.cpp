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

/// Every rank compares its parts; what holds of all ranks' holds of the whole.
template <typename Compare>
bool holds_everywhere(std::span<Value> operands, const Compare& compare) {
  const c10::AutoGradMode no_grad(false);
  const Resolution resolution = resolve(pointwise_map(operands), operands);
  at::Tensor holds = at::full({}, compare(operands[0].local, operands[1].local),
                              operands[0].local.options().dtype(at::kInt));
  for (const int axis : resolution.axes_beside("")) {
    holds = resolution.mesh().axis(axis)->all_reduce(holds, Reduction::min);
  }
  return holds.item<int>() != 0;
}

/// A tensor is equal to itself without a look, which is how torch::nn::MultiheadAttention tells
/// self-attention, and so are views of the same elements where this rank has only shapes.
void equal(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  if (operands[0].sizes() != operands[1].sizes()) return call.result_plain(false);
  if (call.tensor(0).is_same(call.tensor(1))) return call.result_plain(true);
  const auto same = [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); };
  call.result_plain(call.read([&] { return holds_everywhere(operands, same); },
                              [&]() -> std::optional<c10::IValue> {
                                if (same_elements(operands[0], operands[1])) return true;
                                return std::nullopt;
                              }));
}

/// allclose(self, other, rtol, atol, equal_nan).
void allclose(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  const auto close = [&](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a, b, call.number(2), call.number(3), call.boolean(4));
  };
  call.result_plain(call.read([&] { return holds_everywhere(operands, close); },
                              []() -> std::optional<c10::IValue> { return std::nullopt; }));
}

}  // namespace

void add_comparison_rules(RuleTable& table) {
  table.add({"aten::equal"}, equal);
  table.add({"aten::allclose"}, allclose);
}

}  // namespace oslo
