#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace oslo {

/// A batch in parts along dimension 0, one after the other.
struct MicroBatches {
  std::vector<std::vector<at::Tensor>> tensors;  ///< by micro-batch, as in the batch
  /// What part of the batch's rows each has: they add up to 1.
  std::vector<double> weights;
};

/// Cuts `batch` into `number` parts as `tensor_split` does: of 8 rows in 3 parts they have 3, 3 and
/// 2. Throws, naming the sizes, for no tensors, tensors of different sizes there or without
/// dimensions, and fewer rows than parts.
MicroBatches split_batch(const std::vector<at::Tensor>& batch, int number);

}  // namespace oslo
