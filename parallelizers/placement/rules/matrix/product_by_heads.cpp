#include "parallelizers/placement/rules/matrix/product_by_heads.h"

#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/layout/moving/recut.h"

namespace oslo {
namespace {

/// A product of two operands by the letters of its map, of which one axis cuts both.
class CutProduct {
 public:
  CutProduct(const DimensionMap& map, std::span<Value> operands, int axis)
      : map_(map), operands_(operands), axis_(axis) {}

  /// Queries beside keys: each is cut along a dimension that the other does not have.
  bool makes_scores() const {
    return alone(0) && alone(1) && in_result(letter(0)) && in_result(letter(1)) &&
           !contains(map_.operands[1], letter(0)) && !contains(map_.operands[0], letter(1));
  }

  /// Scores beside values: `scores` is cut along heads, the other along what is summed.
  bool weighs_values(size_t scores) const {
    const size_t values = 1 - scores;
    return alone(scores) && alone(values) && shared(letter(scores)) && in_result(letter(scores)) &&
           shared(letter(values)) && !in_result(letter(values));
  }

  void check_no_ring() const {
    OSLO_CHECK_AS(
        config, context()->sequence_attention != SequenceAttention::ring,
        "'context_attention' = ring takes torch::scaled_dot_product_attention, whose scores exist "
        "a part at a time, and ",
        RuleScope::current(), " met queries of shape ", shape(0), " and keys of shape ", shape(1),
        " of an attention that is written by hand; set it to gather, ulysses or auto");
  }

  void lay_by_heads() {
    const int64_t queries = heads(0), keys = heads(1);
    const bool alike = queries >= 0 && operands_[0].size(queries) == operands_[1].size(keys) &&
                       operands_[0].axes_cutting(queries) == operands_[1].axes_cutting(keys);
    OSLO_CHECK_AS(config, alike, "'context_attention' = ulysses cuts heads, and ",
                  RuleScope::current(), " met queries of shape ", shape(0), " and keys of shape ",
                  shape(1), ", whose heads cannot be cut alike; set it to gather, ring or auto");
    Value& query = operands_[0];
    const int ranks = query.layout->group(axis_)->size();
    const CutPtr cut =
        cut_inside(query.layout.get(), Placement::shard(queries), query.local.size(queries), ranks);
    query = move_cut(std::move(query), axis_, queries, cut);
    operands_[1] = move_cut(std::move(operands_[1]), axis_, keys, cut);
  }

  /// Where the result is brought back to: the rows of scores lie as the values do, where there are
  /// as many.
  std::optional<BackToPositions> lay_beside(size_t scores) {
    Value& values = operands_[1 - scores];
    const Layout::AxisCut lay = (*values.layout)[axis_];
    const auto heads = static_cast<int64_t>(map_.operands[1 - scores].find(letter(scores)));
    values = move_cut(std::move(values), axis_, heads, (*operands_[scores].layout)[axis_].cut);
    for (size_t d = 0; d < map_.results[0].size(); ++d) {
      const char row = map_.results[0][d];
      const size_t at = map_.operands[scores].find(row);
      if (at == std::string::npos || contains(map_.operands[1 - scores], row)) continue;
      const auto dim = static_cast<int64_t>(at);
      if (operands_[scores].size(dim) != lay.cut->size()) continue;
      if (!operands_[scores].axes_cutting(dim).empty()) continue;
      return BackToPositions{axis_, static_cast<int64_t>(d), lay.cut};
    }
    return std::nullopt;
  }

 private:
  const ContextPtr& context() const { return operands_[0].layout->context(); }
  char letter(size_t i) const { return map_.operands[i][(*operands_[i].layout)[axis_].dim]; }
  bool in_result(char letter) const { return contains(map_.results[0], letter); }
  bool shared(char letter) const {
    return contains(map_.operands[0], letter) && contains(map_.operands[1], letter);
  }
  std::string shape(size_t i) const {
    const auto sizes = operands_[i].sizes();
    return c10::str(c10::IntArrayRef(sizes));
  }

  /// Whether no other axis cuts what this one cuts of operand `i`.
  bool alone(size_t i) const {
    return operands_[i].axes_cutting((*operands_[i].layout)[axis_].dim).size() == 1;
  }

  /// The dimension of operand `i` that both have and the result keeps, the last of those before
  /// queries and keys; -1 without one.
  int64_t heads(size_t i) const {
    for (auto d = static_cast<int64_t>(map_.operands[0].size()) - 1; d >= 0; --d) {
      const char head = map_.operands[0][d];
      if (!shared(head) || !in_result(head)) continue;
      return static_cast<int64_t>(map_.operands[i].find(head));
    }
    return -1;
  }

  const DimensionMap& map_;
  std::span<Value> operands_;
  const int axis_;
};

}  // namespace

std::optional<BackToPositions> cut_by_heads(const DimensionMap& map, std::span<Value> operands) {
  if (operands.size() != 2 || !operands[0].cut() || !operands[1].cut()) return std::nullopt;
  if (!operands[0].use.empty() || !operands[1].use.empty()) return std::nullopt;  // weights
  const SequenceAttention asked = operands[0].layout->context()->sequence_attention;
  const bool by_heads = asked == SequenceAttention::ulysses;
  if (!by_heads && asked != SequenceAttention::ring) return std::nullopt;
  for (int axis = 0; axis < operands[0].layout->axes(); ++axis) {
    const auto whole = [&](const Value& value) { return (*value.layout)[axis].whole(); };
    if (whole(operands[0]) || whole(operands[1])) continue;
    CutProduct product(map, operands, axis);
    if (product.makes_scores()) {
      product.check_no_ring();
      product.lay_by_heads();
      return std::nullopt;
    }
    for (const size_t scores : {0, 1}) {
      if (by_heads && product.weighs_values(scores)) return product.lay_beside(scores);
    }
  }
  return std::nullopt;
}

Value brought_back(Value product, const std::optional<BackToPositions>& to) {
  if (!to || !product.layout || (*product.layout)[to->axis].whole()) return product;
  return move_cut(std::move(product), to->axis, to->dim, to->cut);
}

}  // namespace oslo
