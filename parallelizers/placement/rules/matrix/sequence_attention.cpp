#include "parallelizers/placement/rules/matrix/sequence_attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/placement/layout/moving/recut.h"
#include "parallelizers/placement/rules/matrix/position_runs.h"
#include "parallelizers/placement/rules/positions.h"

namespace oslo::sequence_attention {
namespace {

int64_t sequence_of(const Value& value) {
  return value.dim() - 2;
}

int64_t heads_of(const Value& value) {
  return value.dim() - 3;
}

/// Whether the axis alone cuts the value's sequence.
bool lies_along(const Value& value, int axis) {
  const Axes cutting = value.axes_cutting(sequence_of(value));
  return cutting.size() == 1 && cutting[0] == axis;
}

/// Whether heads can be cut over one more axis, alike for queries and keys.
bool heads_divide(std::span<const Value> query_key_value, int axis) {
  const Value &query = query_key_value[0], &key = query_key_value[1];
  if (query.dim() < 3) return false;
  const int64_t heads = query.size(heads_of(query)), key_heads = key.size(heads_of(key));
  return key_heads > 0 && heads % key_heads == 0 && (key_heads > 1 || heads == 1) &&
         query_key_value[2].size(heads_of(key)) == key_heads &&
         std::ranges::all_of(query_key_value, [&](const Value& value) {
           const bool free = !value.layout || (*value.layout)[axis].whole();
           return (free || lies_along(value, axis)) &&
                  value.axes_cutting(heads_of(value)) == query.axes_cutting(heads_of(query));
         });
}

/// How many heads of keys a rank of the axes that cut them has, at least.
int64_t heads_of_a_rank(const Value& key) {
  int64_t ranks = 1;
  for (const int axis : key.axes_cutting(heads_of(key))) ranks *= key.layout->group(axis)->size();
  return key.size(heads_of(key)) / ranks;
}

}  // namespace

int axis_of(const Value& query) {
  const Axes cutting = query.axes_cutting(sequence_of(query));
  return cutting.size() == 1 ? cutting[0] : -1;
}

SequenceAttention form_of(std::span<const Value> query_key_value, int axis) {
  const Value& query = query_key_value[0];
  // Where every rank has all keys there is nothing to bring.
  const auto whole = [&](const Value& value) {
    return !value.layout || (*value.layout)[axis].whole();
  };
  if (whole(query_key_value[1]) && whole(query_key_value[2])) return SequenceAttention::gather;
  const SequenceAttention asked = query.layout->context()->sequence_attention;
  const bool divide = heads_divide(query_key_value, axis);
  if (asked == SequenceAttention::ulysses) {
    OSLO_CHECK_AS(config, divide, "'context_attention' = ulysses cuts heads, and ",
                  RuleScope::current(), " met queries of shape ", c10::IntArrayRef(query.sizes()),
                  " and keys of shape ", c10::IntArrayRef(query_key_value[1].sizes()),
                  ", whose heads cannot be cut alike; set it to gather, ring or auto");
  }
  if (asked != SequenceAttention::automatic) return asked;
  const int ranks = query.layout->group(axis)->size();
  return divide && heads_of_a_rank(query_key_value[1]) >= ranks ? SequenceAttention::ulysses
                                                                : SequenceAttention::gather;
}

void by_heads(std::span<Value> query_key_value, int axis) {
  const Value &query = query_key_value[0], &key = query_key_value[1];
  const int64_t heads = heads_of(query), ratio = query.size(heads) / key.size(heads);
  const CutPtr keys = cut_inside(key.layout.get(), Placement::shard(heads), key.local.size(heads),
                                 query.layout->group(axis)->size());
  const ContextPtr context = query.layout->context();
  for (size_t i = 0; i < query_key_value.size(); ++i) {
    Value& value = query_key_value[i];
    const CutPtr cut = i == 0 && ratio > 1 ? keys->scaled(ratio) : keys;
    value = lies_along(value, axis) ? move_cut(std::move(value), axis, heads, cut)
                                    : split_axis(std::move(value), context, axis, heads, cut);
  }
}

Value by_positions(Value result, int axis, const CutPtr& positions) {
  const int64_t sequence = sequence_of(result);
  return move_cut(std::move(result), axis, sequence, positions);
}

at::Tensor positions_of(const Value& value) {
  const int64_t dim = sequence_of(value);
  return value.axes_cutting(dim).empty() ? at::Tensor() : positions_along(value, dim, at::kCPU);
}

at::Tensor causal(c10::ArrayRef<at::Tensor> query_key_value, const at::Tensor& positions,
                  std::optional<double> scale, bool grouped) {
  std::vector<at::Tensor> results;
  for (const auto& [start, length] : runs_of(positions)) {
    const at::Tensor query = query_key_value[0].narrow(-2, start, length);
    const at::Tensor own = positions.narrow(0, start, length);
    const int64_t last = own[length - 1].item<int64_t>();
    const int64_t seen = std::min(query_key_value[1].size(-2), last + 1);  // none looks farther
    const at::Tensor key = query_key_value[1].narrow(-2, 0, seen);
    const at::Tensor value = query_key_value[2].narrow(-2, 0, seen);
    const bool triangle = last + 1 == length;
    std::optional<at::Tensor> mask;
    if (!triangle) mask = own.unsqueeze(1).ge(at::arange(seen)).to(query.device());
    results.push_back(
        at::scaled_dot_product_attention(query, key, value, mask, 0.0, triangle, scale, grouped));
  }
  return results.size() == 1 ? results[0] : at::cat(results, -2);
}

}  // namespace oslo::sequence_attention
