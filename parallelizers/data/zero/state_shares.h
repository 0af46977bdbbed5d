#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace oslo {

/// What of parameters one rank of several steps.
enum class ShareUnit {
  elements,  ///< as many elements as others, from the middle of tensors: for optimizers that treat
             ///< every element by itself
  tensors    ///< whole tensors, such that the rank with most of them has as little as possible
};

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

/// Shares `parameters` out over `ranks`. Of a parameter a rank has at most one piece; under
/// `elements` ranks have equally much of each bucket (one more where that does not divide, up to 63
/// more of half types, which are cut at multiples of 64). A bucket is full at `bytes` or more.
/// Depends on sizes and types alone, so that ranks with the same parameters come to the same; under
/// `tensors`, tensor ranks with parts of the same, too.
std::vector<SharedBucket> share_out(const std::vector<at::Tensor>& parameters, int ranks,
                                    ShareUnit unit, int64_t bytes);

}  // namespace oslo
