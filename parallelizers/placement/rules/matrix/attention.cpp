#include <ATen/ATen.h>

#include <limits>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// Letters of a mask that is aligned with (.., q, k) from the right.
std::string mask_letters(const Value& mask, const std::string& scores) {
  OSLO_CHECK(mask.dim() <= static_cast<int64_t>(scores.size()),
             "scaled_dot_product_attention: a mask of ", mask.dim(), " dimensions for scores of ",
             scores.size());
  std::string own = scores.substr(scores.size() - mask.dim());
  for (int64_t d = 0; d < mask.dim(); ++d) {
    if (mask.size(d) == 1) own[d] = '-';
  }
  return own;
}

/// Letters of the outer dimensions of `x`; one element stretches beside another operand's more.
std::string outer_letters(const Value& x, std::string outer, c10::ArrayRef<Value> operands) {
  for (size_t d = 0; d < outer.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    for (const Value& other : operands) {
      if (x.size(dim) == 1 && other.size(dim) != 1) outer[d] = '-';
    }
  }
  return outer;
}

/// What is added to the scores (.., q, k) for a mask. LibTorch's definition below only adds: where
/// a mask of truth values says false, the score becomes the least.
at::Tensor added_to_scores(const at::Tensor& mask, at::ScalarType type) {
  if (mask.scalar_type() != at::kBool) return mask;
  constexpr double kLeast = -std::numeric_limits<double>::infinity();
  return at::zeros_like(mask, mask.options().dtype(type)).masked_fill(mask.logical_not(), kLeast);
}

/// Dropout inside: attention by its definition, whose parts enter the door one by one.
void by_definition(Call& call) {
  const std::optional<double> scale =
      call.none(6) ? std::nullopt : std::optional<double>(call.number(6));
  const auto placed = [&](size_t i) { return wrap(call.value(i)); };
  const at::Tensor query = placed(0);
  std::optional<at::Tensor> mask;
  if (!call.none(3)) {
    const at::Tensor given = call.tensor(3);
    const at::ScalarType type = given.scalar_type(), own = query.scalar_type();
    TORCH_CHECK(type == at::kBool || type == at::kFloat || type == own,
                "Expected attn_mask dtype to be bool or float or to match query dtype, but got "
                "attn_mask.dtype: ",
                type, " and  query.dtype: ", own, " instead.");
    mask = added_to_scores(given, own);
  }
  call.result_plain(std::get<0>(at::_scaled_dot_product_attention_math(
      query, placed(1), placed(2), mask, call.number(4), call.boolean(5), std::nullopt, scale,
      call.size() > 7 && call.boolean(7))));
}

/// q (.., h, q, d), k (.., h, k, d), v (.., h, k, e): heads and batch may be cut. With grouped
/// queries, q has a multiple of k's heads, and so do its pieces.
void attention(Call& call) {
  if (call.number(4) > 0) return by_definition(call);
  const c10::SmallVector<Value, 3> qkv{call.value(0), call.value(1), call.value(2)};
  const Value &q = qkv[0], &k = qkv[1], mask = call.value(3);
  const int64_t dims = q.dim();
  for (const Value& x : qkv) {
    if (dims < 2 || x.dim() != dims) return call.gather("query, key and value of unequal rank");
  }
  const bool grouped =
      dims > 2 && call.size() > 7 && call.boolean(7) && q.size(dims - 3) != k.size(dims - 3);
  const std::string outer = letters(dims - 2);
  const auto own = [&](const Value& x) { return grouped ? outer : outer_letters(x, outer, qkv); };
  DimensionMap map{{own(q) + "QD", own(k) + "KD", own(qkv[2]) + "KE"}, {outer + "QE"}, "QKD"};
  if (mask.defined()) {
    std::string own = mask_letters(mask, outer + "QK");
    map.operands.push_back(own);
  }
  if (grouped) {
    const char head = outer.back();
    const int64_t ratio = q.size(dims - 3) / std::max<int64_t>(1, k.size(dims - 3));
    if (ratio * k.size(dims - 3) != q.size(dims - 3)) return call.gather("heads do not divide");
    map.scales = {{0, head, ratio}, {DimensionMap::kResult, head, ratio}};
    if (mask.defined()) map.scales.push_back({3, head, ratio});
  }
  call.run(map, [&](c10::ArrayRef<at::Tensor> local) -> std::vector<c10::IValue> {
    if (local[0].numel() > 0) return call.call_below(local);
    // LibTorch's fused kernels divide by the number of heads; a rank may hold none. A mask's
    // gradient is summed over the ranks, so this one's nothing must be part of the graph.
    const bool biased = mask.defined() && local[3].is_floating_point();
    const bool own_groups = grouped && local[1].size(dims - 3) > 0;
    return {std::get<0>(at::_scaled_dot_product_attention_math(
        local[0], local[1], local[2], biased ? std::optional<at::Tensor>(local[3]) : std::nullopt,
        0.0, false, std::nullopt, std::nullopt, own_groups))};
  });
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table.add({"aten::scaled_dot_product_attention"}, attention);
}

}  // namespace oslo
