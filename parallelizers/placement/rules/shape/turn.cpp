#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// What one rank holds without a gap.
struct Piece {
  int rank;
  int64_t length;
};

/// In the order of the whole dimension.
std::vector<Piece> pieces_of(const Cut& cut) {
  std::vector<Piece> pieces;
  for (const Cut::Run& run : cut.runs()) {
    for (int64_t i = 0; i < run.repeat; ++i) {
      for (int rank = 0; rank < cut.ranks(); ++rank) {
        if (run.pieces[rank] > 0) pieces.push_back({rank, run.pieces[rank]});
      }
    }
  }
  return pieces;
}

/// The cut that has these pieces: a stretch ends where the ranks begin anew. Without an origin:
/// a wish for units or blocks of it would say nothing of the parameter's order.
Cut cut_of(const std::vector<Piece>& pieces, int ranks) {
  Cut::Runs runs;
  int last = ranks;
  for (const Piece& piece : pieces) {
    if (piece.rank < last) runs.push_back({1, Cut::Sizes(ranks, 0)});
    runs.back().pieces[piece.rank] += piece.length;
    last = piece.rank;
  }
  if (runs.empty()) runs.push_back({1, Cut::Sizes(ranks, 0)});
  return Cut(std::move(runs));
}

CutPtr turned(const Cut& cut) {
  std::vector<Piece> pieces = pieces_of(cut);
  std::reverse(pieces.begin(), pieces.end());
  Cut::Family family;
  for (const CutPtr& other : cut.family()) family.push_back(turned(*other));
  return cut_of(pieces, cut.ranks()).among(std::move(family));
}

/// flip(self, dims): every rank turns its part around, and so does the order of the ranks.
void flip(Call& call) {
  const Value x = call.value(0);
  std::vector<int64_t> dims = call.integers(1);
  if (!dims.empty()) dims = call.dimensions(1, x.dim());
  Value y{x.local.flip(dims), x.layout};
  if (x.cut()) {
    auto layout = std::make_shared<Layout>(*x.layout);
    for (int axis = 0; axis < layout->axes(); ++axis) {
      auto& [dim, cut] = (*layout)[axis];
      if (std::find(dims.begin(), dims.end(), dim) != dims.end()) cut = turned(*cut);
    }
    y.layout = std::move(layout);
  }
  call.result(std::move(y));
}

/// `x` with its last `shift` elements along `dim` first: each rank's among them are the last of
/// its part.
Value rolled(const Value& x, int64_t dim, int64_t shift) {
  const Axes cutting = x.axes_cutting(dim);
  if (cutting.empty()) return {x.local.roll(shift, dim), x.layout};
  auto layout = std::make_shared<Layout>(*x.layout);
  CutPtr& cut = (*layout)[cutting[0]].cut;
  const int own = layout->group(cutting[0])->rank();
  std::vector<Piece> before = pieces_of(*cut), moved;
  int64_t left = shift, held = 0;
  while (left > 0) {
    Piece& last = before.back();
    const int64_t taken = std::min(left, last.length);
    moved.push_back({last.rank, taken});
    if (last.rank == own) held += taken;
    left -= taken;
    last.length -= taken;
    if (last.length == 0) before.pop_back();
  }
  std::reverse(moved.begin(), moved.end());
  moved.insert(moved.end(), before.begin(), before.end());
  cut = std::make_shared<const Cut>(cut_of(moved, cut->ranks()));
  return {x.local.roll(held, dim), std::move(layout)};
}

/// roll(self, shifts, dims): without dims, of the flattened tensor.
void roll(Call& call) {
  Value x = call.value(0);
  const std::vector<int64_t> shifts = call.integers(1);
  if (call.integers(2).empty()) return call.gather("rolls the flattened tensor");
  const std::vector<int64_t> dims = call.dimensions(2, x.dim());
  if (shifts.size() != dims.size()) throw ShapeMismatch("roll: as many shifts as dimensions");
  for (const int64_t dim : dims) {
    if (x.axes_cutting(dim).size() > 1) return call.gather("a dimension cut by several axes");
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t size = x.size(dims[i]);
    if (size > 0) x = rolled(x, dims[i], (shifts[i] % size + size) % size);
  }
  // No shift at all gives a new tensor, too.
  if (x.local.is_same(call.value(0).local)) x.local = x.local.clone();
  call.result(std::move(x));
}

/// rot90(self, k, dims), as LibTorch defines it.
void rotate(Call& call) {
  const at::Tensor x = call.tensor(0);
  const int64_t turns = (call.integer(1) % 4 + 4) % 4;
  const std::vector<int64_t> dims = call.integers(2);
  if (dims.size() != 2) throw ShapeMismatch("rot90: two dimensions");
  const std::vector<int64_t> wrapped = call.dimensions(2, x.dim());
  if (wrapped[0] == wrapped[1]) throw ShapeMismatch("rot90: two different dimensions");
  if (turns == 0) return call.result_plain(x.clone());
  if (turns == 2) return call.result_plain(x.flip(dims));
  const at::Tensor turned = x.flip({turns == 1 ? dims[1] : dims[0]});
  call.result_plain(turned.transpose(dims[0], dims[1]));
}

}  // namespace

void add_turn_rules(RuleTable& table) {
  table.add({"aten::flip"}, flip);
  table.add({"aten::roll"}, roll);
  table.add({"aten::rot90"}, rotate);
}

}  // namespace oslo
