#include "checkpoint/regions/region.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>

namespace oslo {
namespace {

/// Appends a stretch, or lengthens the last one that it follows.
void append(Region::Stretches& stretches, int64_t begin, int64_t size) {
  if (size == 0) return;
  if (!stretches.empty() && stretches.back().begin + stretches.back().size == begin) {
    stretches.back().size += size;
  } else {
    stretches.push_back({begin, size});
  }
}

/// Walks the global stretches of a dimension by places in the local one.
class LocalWalk {
 public:
  explicit LocalWalk(const Region::Stretches& stretches) : stretches_(stretches) {}

  void skip(int64_t count) {
    advance(count, [](int64_t, int64_t) {});
  }
  void take(int64_t count, Region::Stretches& into) {
    advance(count, [&](int64_t begin, int64_t size) { append(into, begin, size); });
  }

 private:
  template <typename Visit>
  void advance(int64_t count, const Visit& visit) {
    while (count > 0 && next_ < stretches_.size()) {
      const auto& [begin, size] = stretches_[next_];
      const int64_t step = std::min(count, size - inside_);
      visit(begin + inside_, step);
      count -= step;
      inside_ += step;
      if (inside_ < size) continue;
      ++next_;
      inside_ = 0;
    }
  }

  const Region::Stretches& stretches_;
  size_t next_ = 0;
  int64_t inside_ = 0;  // elements of the next stretch that are behind
};

std::vector<Overlap::Piece> pieces_of(const Region::Stretches& from, const Region::Stretches& to) {
  std::vector<Overlap::Piece> pieces;
  int64_t from_local = 0, to_local = 0;  // where the stretches begin in their places' dimensions
  size_t i = 0, j = 0;
  while (i < from.size() && j < to.size()) {
    const int64_t begin = std::max(from[i].begin, to[j].begin);
    const int64_t from_end = from[i].begin + from[i].size, to_end = to[j].begin + to[j].size;
    const int64_t end = std::min(from_end, to_end);
    if (begin < end) {
      const Overlap::Piece piece{from_local + begin - from[i].begin, to_local + begin - to[j].begin,
                                 end - begin};
      const bool follows = !pieces.empty() &&
                           pieces.back().from + pieces.back().size == piece.from &&
                           pieces.back().to + pieces.back().size == piece.to;
      if (follows) {
        pieces.back().size += piece.size;
      } else {
        pieces.push_back(piece);
      }
    }
    if (from_end <= to_end) from_local += from[i++].size;
    if (to_end <= from_end) to_local += to[j++].size;
  }
  return pieces;
}

void copy_pieces(const at::Tensor& from, const at::Tensor& to, const Overlap& overlap, size_t dim) {
  if (dim == overlap.dims.size()) {
    to.copy_(from);
    return;
  }
  const auto d = static_cast<int64_t>(dim);
  for (const Overlap::Piece& piece : overlap.dims[dim]) {
    copy_pieces(from.narrow(d, piece.from, piece.size), to.narrow(d, piece.to, piece.size), overlap,
                dim + 1);
  }
}

}  // namespace

Region::Region(c10::IntArrayRef shape) : dims_(shape.size()) {
  for (size_t d = 0; d < shape.size(); ++d) append(dims_[d], 0, shape[d]);
}

Region::Region(c10::IntArrayRef shape, const LayoutPtr& layout) : Region(shape) {
  if (!layout) return;
  for (const int axis : layout->nesting()) {
    const auto& [dim, cut_of_axis] = (*layout)[axis];
    if (dim >= 0) cut(dim, *cut_of_axis, layout->group(axis)->rank());
  }
}

void Region::cut(int64_t dim, const Cut& cut, int rank) {
  Stretches kept;
  LocalWalk walk(dims_[dim]);
  for (const Cut::Run& run : cut.runs()) {
    int64_t before = 0, after = 0;
    for (int r = 0; r < cut.ranks(); ++r) {
      if (r < rank) before += run.pieces[r];
      if (r > rank) after += run.pieces[r];
    }
    const int64_t own = run.pieces[rank];
    if (own == 0) {
      walk.skip(run.repeat * (before + after));
      continue;
    }
    for (int64_t i = 0; i < run.repeat; ++i) {
      walk.skip(before);
      walk.take(own, kept);
      walk.skip(after);
    }
  }
  dims_[dim] = std::move(kept);
}

std::vector<int64_t> Region::sizes() const {
  std::vector<int64_t> sizes;
  for (const Stretches& stretches : dims_) {
    int64_t size = 0;
    for (const Stretch& stretch : stretches) size += stretch.size;
    sizes.push_back(size);
  }
  return sizes;
}

int64_t Region::numel() const {
  return c10::multiply_integers(sizes());
}

int64_t Overlap::numel() const {
  int64_t count = 1;
  for (const auto& pieces : dims) {
    int64_t size = 0;
    for (const Piece& piece : pieces) size += piece.size;
    count *= size;
  }
  return count;
}

Overlap overlap_of(const Region& from, const Region& to) {
  Overlap overlap;
  for (int64_t d = 0; d < from.dim(); ++d) overlap.dims.push_back(pieces_of(from[d], to[d]));
  return overlap;
}

void copy_overlap(const at::Tensor& from, const at::Tensor& to, const Overlap& overlap) {
  if (!overlap.empty()) copy_pieces(from, to, overlap, 0);
}

}  // namespace oslo
