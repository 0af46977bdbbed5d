#include <ATen/ATen.h>

#include "parallelizers/placement/call.h"
#include "parallelizers/placement/placed_tensor.h"
#include "parallelizers/placement/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// Letters of a mask that is aligned with (.., q, k) from the right.
std::string mask_letters(const Value& mask, const std::string& scores) {
  std::string own = scores.substr(scores.size() - mask.dim());
  for (int64_t d = 0; d < mask.dim(); ++d) {
    if (mask.size(d) == 1) own[d] = '-';
  }
  return own;
}

/// Dropout inside: attention by its definition, whose parts enter the door one by one.
void by_definition(Call& call) {
  const auto optional = [&](size_t i) {
    return call.none(i) ? std::optional<at::Tensor>() : std::optional(call.tensor(i));
  };
  const std::optional<double> scale =
      call.none(6) ? std::nullopt : std::optional<double>(call.number(6));
  const auto placed = [&](size_t i) { return wrap(call.value(i)); };
  call.result_plain(std::get<0>(at::_scaled_dot_product_attention_math(
      placed(0), placed(1), placed(2), optional(3), call.number(4), call.boolean(5), std::nullopt,
      scale, call.size() > 7 && call.boolean(7))));
}

/// q (.., h, q, d), k (.., h, k, d), v (.., h, k, e): heads and batch may be cut. With grouped
/// queries, q has a multiple of k's heads, and so do its pieces.
void attention(Call& call) {
  if (call.number(4) > 0) return by_definition(call);
  const Value q = call.value(0), k = call.value(1), mask = call.value(3);
  const int64_t dims = q.dim();
  const bool grouped = call.size() > 7 && call.boolean(7) && q.size(dims - 3) != k.size(dims - 3);
  const std::string outer = letters(dims - 2);
  DimensionMap map{{outer + "QD", outer + "KD", outer + "KE"}, {outer + "QE"}, "QKD"};
  if (mask.defined()) {
    std::string own = mask_letters(mask, outer + "QK");
    map.operands.push_back(own);
  }
  if (grouped) {
    const char head = outer.back();
    const int64_t ratio = q.size(dims - 3) / k.size(dims - 3);
    map.scales = {{0, head, ratio}, {DimensionMap::kResult, head, ratio}};
    if (mask.defined()) map.scales.push_back({3, head, ratio});
  }
  call.run(map, [&](c10::ArrayRef<at::Tensor> local) -> std::vector<c10::IValue> {
    if (local[0].numel() > 0) return call.call_below(local);
    // LibTorch's fused kernels divide by the number of heads; a rank may hold none.
    return {std::get<0>(at::_scaled_dot_product_attention_math(local[0], local[1], local[2]))};
  });
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table.add({"aten::scaled_dot_product_attention"}, attention);
}

}  // namespace oslo
