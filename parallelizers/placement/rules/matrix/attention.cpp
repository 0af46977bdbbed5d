#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/matrix/ring_attention.h"
#include "parallelizers/placement/rules/matrix/sequence_attention.h"

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

std::optional<double> scale_of(const Call& call) {
  return call.none(6) ? std::nullopt : std::optional<double>(call.number(6));
}

/// Dropout inside: attention by its definition, whose parts enter the door one by one.
at::Tensor by_definition(const Call& call, std::span<const Value> qkv) {
  const at::Tensor query = wrap(qkv[0]);
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
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, wrap(qkv[1]), wrap(qkv[2]), mask, call.number(4), call.boolean(5), std::nullopt,
      scale_of(call), call.size() > 7 && call.boolean(7)));
}

/// Whether keys and values can go round over `axis`: parts of one sequence, which every other axis
/// cuts as it cuts the queries, and beside which nothing stretches.
bool goes_round(const Call& call, std::span<const Value> qkv, const Value& mask, int axis) {
  const Value &query = qkv[0], &key = qkv[1], &value = qkv[2];
  const int64_t dims = query.dim(), heads = dims - 3;
  if (call.number(4) > 0 || (mask.defined() && call.boolean(5))) return false;
  if ((mask.defined() && mask.local.requires_grad()) || query.local.is_meta()) return false;
  if (!key.layout || !value.layout || key.axes_cutting(dims - 2) != Axes{axis}) return false;
  for (int64_t d = 0; d < heads; ++d) {
    if (key.size(d) != query.size(d) || value.size(d) != query.size(d)) return false;
  }
  const int64_t ratio = dims < 3 ? 1 : query.size(heads) / std::max<int64_t>(1, key.size(heads));
  if (dims > 2 && query.size(heads) != ratio * key.size(heads)) return false;
  if (dims > 2 && value.size(heads) != key.size(heads)) return false;
  for (int other = 0; other < query.layout->axes(); ++other) {
    const auto &own = (*query.layout)[other], &beside = (*key.layout)[other];
    if (!((*value.layout)[other] == beside)) return false;
    if (other == axis) continue;
    if (own.whole() && beside.whole()) continue;
    if (own.dim != beside.dim || own.dim >= dims - 2) return false;
    const CutPtr cut = own.dim == heads && ratio > 1 ? beside.cut->scaled(ratio) : beside.cut;
    if (!(*own.cut == *cut)) return false;
  }
  return true;
}

/// Attention whose keys and values go round over `axis`.
Value in_a_ring(Call& call, std::span<const Value> qkv, Value mask, const DimensionMap& map,
                int axis) {
  const Value& query = qkv[0];
  auto ring = std::make_shared<Ring>();
  ring->group = query.layout->group(axis);
  ring->causal = call.boolean(5);
  ring->scale = scale_of(call).value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  ring->queries = sequence_attention::positions_of(query);
  const Cut& keys = *(*qkv[1].layout)[axis].cut;
  ring->keys = keys.by_rank(at::arange(keys.size()), 0).split_with_sizes(keys.sizes());
  if (mask.defined()) {
    c10::SmallVector<Value, 2> beside{query, std::move(mask)};
    resolve({{map.operands[0], map.operands[3]}, {map.results[0]}, "K"}, beside,
            Keep::first_operand);
    ring->mask = beside[1].local;
  }
  return {ring_attention(query.local, qkv[1].local, qkv[2].local, ring), query.layout};
}

/// Each rank's queries with all keys and values that have their heads.
Value with_all_keys(Call& call, c10::SmallVector<Value, 4> operands, DimensionMap map,
                    bool grouped) {
  const int64_t dims = operands[0].dim();
  const bool causal = call.boolean(5), masked = operands.size() > 3;
  const at::Tensor positions =
      causal && masked ? at::Tensor() : sequence_attention::positions_of(operands[0]);
  if (positions.defined()) {
    map.whole = "KD";
    map.brought = "K";
  }
  const Resolution resolution = resolve(map, operands);
  c10::SmallVector<at::Tensor, 4> local;
  for (Value& operand : operands) local.push_back(std::move(operand.local));
  const auto attention = [&]() -> at::Tensor {
    if (local[0].numel() > 0) {
      const bool on_shapes = local[0].is_meta();  // which have the same ones either way
      if (!causal || !positions.defined() || on_shapes) return call.call_below(local)[0].toTensor();
      return sequence_attention::causal(local, positions, scale_of(call), grouped);
    }
    // LibTorch's fused kernels divide by the number of heads; a rank may hold none. A mask's
    // gradient is summed over the ranks, so this one's nothing must be part of the graph.
    const bool biased = masked && local[3].is_floating_point();
    const bool own_groups = grouped && local[1].size(dims - 3) > 0;
    return std::get<0>(at::_scaled_dot_product_attention_math(
        local[0], local[1], local[2], biased ? std::optional<at::Tensor>(local[3]) : std::nullopt,
        0.0, false, std::nullopt, std::nullopt, own_groups));
  };
  return resolution.finish(attention(), map.results[0]);
}

/// Keys and values whole on `axis`, so that the parts of a definition find nothing to send round.
void bring_keys(std::span<Value> qkv, int axis) {
  for (Value& value : qkv.subspan(1)) {
    if (value.layout) value = gather_axis(std::move(value), axis);
  }
}

/// q (.., h, q, d), k (.., h, k, d), v (.., h, k, e): heads and batch may be cut. With grouped
/// queries, q has a multiple of k's heads, and so do its pieces. Where the sequence is cut, see
/// sequence_attention.h.
void attention(Call& call) {
  c10::SmallVector<Value, 3> qkv{call.value(0), call.value(1), call.value(2)};
  const Value mask = call.value(3);
  const int64_t dims = qkv[0].dim();
  for (const Value& x : qkv) {
    if (dims < 2 || x.dim() != dims) return call.gather("query, key and value of unequal rank");
  }
  const int64_t heads = dims > 2 ? qkv[0].size(dims - 3) : 1;
  const int64_t key_heads = dims > 2 ? qkv[1].size(dims - 3) : 1;
  const bool grouped = dims > 2 && call.size() > 7 && call.boolean(7) && heads != key_heads;
  const std::string outer = letters(dims - 2);
  const auto own = [&](const Value& x) { return grouped ? outer : outer_letters(x, outer, qkv); };
  DimensionMap map{
      {own(qkv[0]) + "QD", own(qkv[1]) + "KD", own(qkv[2]) + "KE"}, {outer + "QE"}, "QKD"};
  if (mask.defined()) map.operands.push_back(mask_letters(mask, outer + "QK"));
  if (grouped) {
    const char head = outer.back();
    const int64_t ratio = heads / std::max<int64_t>(1, key_heads);
    if (ratio * key_heads != heads) return call.gather("heads do not divide");
    map.scales = {{0, head, ratio}, {DimensionMap::kResult, head, ratio}};
    if (mask.defined()) map.scales.push_back({3, head, ratio});
  }

  const int axis = sequence_attention::axis_of(qkv[0]);
  const SequenceAttention form =
      axis < 0 ? SequenceAttention::gather : sequence_attention::form_of(qkv, axis);
  if (form == SequenceAttention::ring && goes_round(call, qkv, mask, axis)) {
    return call.result(in_a_ring(call, qkv, mask, map, axis));
  }
  const bool by_heads = form == SequenceAttention::ulysses;
  const CutPtr positions = by_heads ? (*qkv[0].layout)[axis].cut : nullptr;
  if (by_heads) sequence_attention::by_heads(qkv, axis);
  if (call.number(4) > 0 && !by_heads) {
    if (form == SequenceAttention::ring) bring_keys(qkv, axis);
    return call.result_plain(by_definition(call, qkv));
  }
  Value result;
  if (call.number(4) > 0) {
    result = value_of(by_definition(call, qkv));
  } else {
    c10::SmallVector<Value, 4> operands(qkv.begin(), qkv.end());
    if (mask.defined()) operands.push_back(mask);
    result = with_all_keys(call, std::move(operands), std::move(map), grouped);
  }
  if (by_heads) result = sequence_attention::by_positions(std::move(result), axis, positions);
  call.result(std::move(result));
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table.add({"aten::scaled_dot_product_attention"}, attention);
}

}  // namespace oslo
