#pragma once

#include <string>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// The letter of the index's dimension in the place of the one it speaks of.
inline constexpr char kIndex = '*';

/// How `x[indices]` corresponds: what aten::index and aten::index_put share.
struct Indexing {
  bool understood = false;  ///< a mask of no dimension, or more indices than dimensions, is not
  bool masks = false;       ///< some index is a mask: how long the result is depends on its values
  std::string self;         ///< letters of the indexed tensor
  c10::SmallVector<std::string, 2> indices;  ///< of each defined index
  std::string touched;                       ///< letters of `self` that are looked up
  std::string common;                        ///< letters of the shape that the indices share
  std::string result;
};

/// Of `self` = argument 0 and the optional tensors of argument 1.
Indexing indexing_of(const Call& call);

/// Where this rank holds the elements of a cut dimension that `indices` (>= 0, of the whole
/// dimension) ask for.
struct OwnPositions {
  at::Tensor local;      ///< in this rank's part; any place in it where the element lies elsewhere
  at::Tensor elsewhere;  ///< bool
};
OwnPositions own_positions(const at::Tensor& indices, const Cut& cut, int rank);
/// The same where this rank holds `held` elements that follow each other, from `first` on. Of none
/// the place is 0 (never_empty).
OwnPositions own_positions(const at::Tensor& indices, int64_t first, int64_t held);

/// `part`, with one element of zeros along `dim` where the rank holds none: something to look up,
/// so that it takes part in backward.
at::Tensor never_empty(const at::Tensor& part, int64_t dim);

}  // namespace oslo
