#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <vector>

namespace oslo {

/// Where a cut came from and what later operators would have liked: shared by all the cuts that
/// descend from one parameter's. The planner reads the wishes (layout/cut_requests.h).
struct CutOrigin {
  std::string parameter;
  int64_t wanted_blocks = 1;  ///< a split wants this many runs
  int64_t wanted_unit = 1;    ///< a view wants whole multiples of this many elements
  /// Whether a planner reads the wishes; a training run, which nobody plans again, writes none.
  bool planning = false;
};

/// How one dimension is cut over the ranks of one mesh axis. The dimension is a sequence of
/// stretches; every stretch is cut into one consecutive piece a rank; a rank's local dimension is
/// its pieces, one after the other. Examples over 2 ranks:
///   10 elements, balanced:            one stretch, pieces (5, 5)
///   fused query-key-value, 3 x 8:     a stretch with pieces (4, 4), repeated 3 times
///   grouped query attention, 8+2+2:   pieces (4, 4) once, pieces (1, 1) repeated twice
/// (PyTorch's DTensor calls a repeated stretch a strided shard.) Pieces may be uneven or empty.
///
/// A cut inside another one, of the same dimension by an earlier axis, is one of a family: each
/// rank of the earlier axis has its own. What is decided by a cut must be decided by its family,
/// or ranks part ways; equality, division and the questions below speak of all of it.
class Cut {
 public:
  using Sizes = c10::SmallVector<int64_t, 4>;
  struct Run {
    int64_t repeat;  ///< how many stretches of this shape follow each other
    Sizes pieces;    ///< one a rank
    bool operator==(const Run& other) const {
      return repeat == other.repeat && pieces == other.pieces;
    }
  };
  using Runs = c10::SmallVector<Run, 1>;
  using Family = std::vector<std::shared_ptr<const Cut>>;

  explicit Cut(Runs runs, std::shared_ptr<CutOrigin> origin = nullptr, int64_t origin_scale = 1);

  /// `blocks` equal stretches of `size` elements in all, each cut in whole `unit`s as evenly as
  /// `tensor_split` does: the first ranks get one more. Throws when blocks x unit does not divide
  /// `size`.
  static Cut balanced(int64_t size, int ranks, int64_t blocks = 1, int64_t unit = 1);

  /// The same among the cuts that lie in its place on all ranks of the axes that cut the dimension
  /// before it, in order of those ranks, the first axis's outermost.
  std::shared_ptr<const Cut> among(Family family) const;
  /// Empty where no earlier axis cuts the dimension.
  const Family& family() const { return family_; }

  int ranks() const { return static_cast<int>(runs_.front().pieces.size()); }
  const Runs& runs() const { return runs_; }
  int64_t size() const { return size_; }
  int64_t local_size(int rank) const { return sizes_[rank]; }
  /// Local sizes, one a rank.
  const Sizes& sizes() const { return sizes_; }
  /// One stretch: the ranks' parts follow each other.
  bool contiguous() const { return runs_.size() == 1 && runs_.front().repeat == 1; }
  /// Every rank has as many elements, and more than one: what one rank's strides say of the whole,
  /// all say.
  bool tells_strides() const { return tells_strides_; }
  /// Whether some rank, in the family too, has no element.
  bool leaves_a_rank_empty() const;
  /// Whether some rank, in the family too, has `size` elements.
  bool gives_a_rank(int64_t size) const;
  bool operator==(const Cut& other) const {
    return this == &other || (size_ == other.size_ && runs_ == other.runs_ &&
                              (family_.empty() ? other.family_.empty() : same_family(other)));
  }

  /// Every piece times `factor`.
  std::shared_ptr<const Cut> scaled(int64_t factor) const;
  /// Every piece divided by `divisor`; null when one does not divide, in the family too.
  std::shared_ptr<const Cut> divided(int64_t divisor) const;
  /// The whole sequence of stretches `count` times.
  std::shared_ptr<const Cut> repeated(int64_t count) const;

  /// Between the order of the whole dimension and that of the ranks' parts joined. Differentiable;
  /// the argument itself where the two are the same.
  at::Tensor by_rank(const at::Tensor& whole, int64_t dim) const;
  at::Tensor in_order(const at::Tensor& joined, int64_t dim) const;

  const std::shared_ptr<CutOrigin>& origin() const { return origin_; }
  /// How many of the origin's elements one element of this cut stands for.
  int64_t origin_scale() const { return origin_scale_; }

 private:
  bool same_family(const Cut& other) const;
  /// The family with each of its cuts changed; no family where a change is null.
  template <typename Change>
  Family changed_family(const Change& change) const;

  Runs runs_;
  Family family_;
  Sizes sizes_;
  int64_t size_ = 0;
  bool tells_strides_ = false;
  std::shared_ptr<CutOrigin> origin_;
  int64_t origin_scale_;
};

using CutPtr = std::shared_ptr<const Cut>;

}  // namespace oslo
