#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "parallelizers/placement/layout/cuts/cut.h"
#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// Which elements of a global tensor a place holds, for tensors of any kind: in each dimension some
/// stretches of it, and of the tensor their product (HDF5 calls it a hyperslab). A place's own
/// tensor has its stretches one after the other. With the regions of all places that saved and of
/// one that loads, what goes where follows from intersections, whatever axes cut either, in
/// whatever order, and however unevenly.
///
/// Over 2 ranks: a fused query-key-value of 3 x 8 rows leaves rank 1 the stretches [4, 8), [12, 16)
/// and [20, 24) of dimension 0; a row and a column axis leave it one stretch in either dimension.
class Region {
 public:
  struct Stretch {
    int64_t begin = 0;  ///< in the global tensor
    int64_t size = 0;
    bool operator==(const Stretch& other) const {
      return begin == other.begin && size == other.size;
    }
  };
  /// Of one dimension: ascending, none empty, none touching the next. No stretch: nothing.
  using Stretches = c10::SmallVector<Stretch, 1>;

  /// All of a tensor of `shape`.
  explicit Region(c10::IntArrayRef shape);
  /// This rank's part under `layout` (null: all). The layout must be that of a tensor of `shape`.
  Region(c10::IntArrayRef shape, const LayoutPtr& layout);

  /// Keeps of `dim` what `cut` leaves `rank` of the elements that are left of it: an outer axis
  /// cuts first. Time and memory in proportion to the stretches.
  void cut(int64_t dim, const Cut& cut, int rank);

  int64_t dim() const { return static_cast<int64_t>(dims_.size()); }
  const Stretches& operator[](int64_t dim) const { return dims_[dim]; }
  /// The shape of the place's own tensor.
  std::vector<int64_t> sizes() const;
  int64_t numel() const;
  bool operator==(const Region& other) const { return dims_ == other.dims_; }

 private:
  std::vector<Stretches> dims_;
};

/// What two regions of one tensor have in common, as the two places' own tensors have it: in each
/// dimension pieces of both, and of the tensor their product.
struct Overlap {
  struct Piece {
    int64_t from = 0;  ///< where it begins in the one place's dimension
    int64_t to = 0;    ///< and in the other's
    int64_t size = 0;
  };
  std::vector<std::vector<Piece>> dims;

  int64_t numel() const;
  bool empty() const { return numel() == 0; }
};

/// Time in proportion to the stretches of both.
Overlap overlap_of(const Region& from, const Region& to);

/// Copies the elements of `overlap` of one place's tensor into the other's. Both may be views.
/// Types may differ and are converted as `copy_` does.
void copy_overlap(const at::Tensor& from, const at::Tensor& to, const Overlap& overlap);

}  // namespace oslo
