#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// What of parameters one rank of several steps.
enum class ShareUnit {
  rows,    ///< as many of each tensor as others, for optimizers that treat every element by itself
  tensors  ///< whole tensors, such that the rank with most of them has as little as possible
};

/// How one parameter is shared out: each rank has rows of it, in the ranks' order. It says so of
/// parts of any number of rows, so that tensor ranks with unequal parts know each other's shares.
struct SharedRows {
  int64_t dim = -1;       ///< which rows follow each other in memory; -1: a number, `first` has it
  int64_t unit = 1;       ///< rows that stay together
  int first = 0;          ///< the rank that gets the first unit more, where they do not divide
  bool to_first = false;  ///< it gets everything

  /// How many of `rows` each rank has.
  std::vector<int64_t> of_ranks(int64_t rows, int ranks) const;
};

/// Shares parameters out over `ranks`, list by list. What a parameter gets depends on the sizes,
/// types and pipeline stages of all lists alone, and not on which part or stage of them a rank has:
/// so all tensor ranks, and all stages with a copy, come to the same. Where rows do not divide,
/// ranks get one more in turn; half types are cut in front of multiples of 64 elements, since
/// LibTorch's kernels round what is left behind their last whole vector in another way.
class RowSharing {
 public:
  RowSharing(ShareUnit unit, int ranks) : unit_(unit), ranks_(ranks) {}
  std::vector<SharedRows> share(const std::vector<at::Tensor>& parameters);

 private:
  /// Of what lies on the same stages.
  struct Stage {
    int next = 0;
    std::vector<int64_t> bytes;
  };
  Stage& stage_of(const at::Tensor& parameter);
  SharedRows rows_of(const at::Tensor& parameter);

  ShareUnit unit_;
  int ranks_;
  std::map<std::string, Stage> stages_;
};

/// Elements of this rank's part of `parameter` that each rank has.
std::vector<int64_t> elements_of_ranks(const at::Tensor& parameter, const SharedRows& rows,
                                       int ranks);

/// How something that is shared out like this lies: as `parameter` on the axes of its mesh, then
/// cut over the last axis of `context`, which has one more.
LayoutPtr shared_layout(const at::Tensor& parameter, const SharedRows& rows,
                        const ContextPtr& context);

/// Elements of one parameter, counted as they lie in memory.
struct SharedPiece {
  size_t parameter;
  int64_t start, length;
};

/// Parameters of one type and device that travel together once they are stepped, and who steps
/// what of them: rank r has `of_rank[r]`, together `sizes[r]` elements.
struct SharedBucket {
  std::vector<std::vector<SharedPiece>> of_rank;
  std::vector<int64_t> sizes;
};

/// `elements`: of each parameter, by rank. A bucket is full at `bytes` or more.
std::vector<SharedBucket> shared_buckets(const std::vector<at::Tensor>& parameters,
                                         const std::vector<std::vector<int64_t>>& elements,
                                         int64_t bytes);

}  // namespace oslo
