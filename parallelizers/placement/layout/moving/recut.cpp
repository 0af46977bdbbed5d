#include "parallelizers/placement/layout/moving/recut.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/layout/purpose.h"

namespace oslo {
namespace {

/// A piece of the dimension that one rank holds.
struct Piece {
  int64_t start;  ///< in the whole
  int64_t length;
  int rank;
  int64_t local;  ///< where it starts in the rank's part
};

/// In the order of the whole, which is that of each rank's part, too.
std::vector<Piece> pieces_of(const Cut& cut) {
  std::vector<Piece> pieces;
  std::vector<int64_t> local(cut.ranks(), 0);
  int64_t at = 0;
  for (const Cut::Run& run : cut.runs()) {
    for (int64_t i = 0; i < run.repeat; ++i) {
      for (int r = 0; r < cut.ranks(); ++r) {
        const int64_t length = run.pieces[r];
        if (length > 0) pieces.push_back({at, length, r, local[r]});
        at += length;
        local[r] += length;
      }
    }
  }
  return pieces;
}

/// What goes from one rank to one rank without a gap on either side, in the order of the whole.
struct Move {
  int from, to;
  int64_t from_start, to_start, length;
};

std::vector<Move> moves_between(const Cut& from, const Cut& to) {
  const std::vector<Piece> sources = pieces_of(from), targets = pieces_of(to);
  std::vector<Move> moves;
  for (size_t s = 0, t = 0; s < sources.size() && t < targets.size();) {
    const Piece &source = sources[s], &target = targets[t];
    const int64_t begin = std::max(source.start, target.start);
    const int64_t end = std::min(source.start + source.length, target.start + target.length);
    moves.push_back({source.rank, target.rank, source.local + begin - source.start,
                     target.local + begin - target.start, end - begin});
    if (source.start + source.length == end) ++s;
    if (target.start + target.length == end) ++t;
  }
  return moves;
}

/// Ranges of `tensor` behind each other; the tensor itself where they are all of it, in order.
at::Tensor in_ranges(const at::Tensor& tensor, int64_t dim,
                     const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  int64_t next = 0;
  std::vector<at::Tensor> parts;
  bool in_order = true;
  for (const auto& [start, length] : ranges) {
    in_order = in_order && start == next;
    next += length;
    parts.push_back(tensor.narrow(dim, start, length));
  }
  if (in_order && next == tensor.size(dim)) return tensor;
  return parts.empty() ? tensor.narrow(dim, 0, 0) : at::cat(parts, dim);
}

}  // namespace

bool can_recut(const Value& value, int axis, int64_t dim, const Cut& to) {
  if (!value.layout || (*value.layout)[axis].dim != dim) return false;
  const Cut& from = *(*value.layout)[axis].cut;
  return value.axes_cutting(dim).size() == 1 && from.family().empty() && to.family().empty() &&
         !from.origin() && !to.origin() && from.size() == to.size();
}

Value recut_axis(Value value, int axis, const CutPtr& to) {
  const auto [dim, from] = (*value.layout)[axis];
  const auto& group = value.layout->group(axis);
  OSLO_CHECK(from->size() == to->size(), "a dimension of ", from->size(),
             " cannot be cut as one of ", to->size());
  auto layout = std::make_shared<Layout>(*value.layout);
  (*layout)[axis] = {dim, to};
  const std::vector<Move> moves = moves_between(*from, *to);
  const bool some_move = std::any_of(moves.begin(), moves.end(),
                                     [](const Move& move) { return move.from != move.to; });
  if (some_move) {
    const AskerScope asker = AskerScope::with_purpose(purpose::kRecut);
    const int own = group->rank(), ranks = group->size();
    Cut::Sizes sent(ranks, 0), received(ranks, 0);
    std::vector<std::vector<std::pair<int64_t, int64_t>>> to_rank(ranks);
    for (const Move& move : moves) {
      if (move.from == own) {
        to_rank[move.to].emplace_back(move.from_start, move.length);
        sent[move.to] += move.length;
      }
      if (move.to == own) received[move.from] += move.length;
    }
    std::vector<std::pair<int64_t, int64_t>> sending, arriving;
    for (const auto& ranges : to_rank) sending.insert(sending.end(), ranges.begin(), ranges.end());
    value.local =
        all_to_all(in_ranges(value.local, dim, sending), group, {dim, sent}, {dim, received});
    // What came lies by rank; here it is read in the order of the whole.
    Cut::Sizes next(ranks, 0);
    for (int r = 1; r < ranks; ++r) next[r] = next[r - 1] + received[r - 1];
    for (const Move& move : moves) {
      if (move.to != own) continue;
      arriving.emplace_back(next[move.from], move.length);
      next[move.from] += move.length;
    }
    value.local = in_ranges(value.local, dim, arriving);
  }
  value.layout = std::move(layout);
  value.strides = {};
  return value;
}

Value move_cut(Value value, int axis, int64_t dim, const CutPtr& cut) {
  const auto [from_dim, from] = (*value.layout)[axis];
  const AskerScope asker = AskerScope::with_purpose(purpose::kRecut);
  const at::Tensor joined = all_to_all(cut->by_rank(value.local, dim), value.layout->group(axis),
                                       {dim, cut->sizes()}, {from_dim, from->sizes()});
  auto layout = std::make_shared<Layout>(*value.layout);
  (*layout)[axis] = {dim, cut};
  value.local = from->in_order(joined, from_dim);
  value.layout = std::move(layout);
  value.strides = {};
  return value;
}

}  // namespace oslo
