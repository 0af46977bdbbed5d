#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace oslo {

/// A batch in parts along dimension 0, one after the other. A forward may write in place into what
/// it is given, several of them are under way at a time, and autograd counts the writes to a tensor
/// by its memory: so they are copies.
struct MicroBatches {
  std::vector<std::vector<at::Tensor>> tensors;  ///< by micro-batch, as in the batch
  /// What part of the batch's rows each has: they add up to 1.
  std::vector<double> weights;

  /// Another copy of one, for a run on shapes.
  std::vector<at::Tensor> copy_of(size_t micro_batch) const;
};

/// Copies `batch` into `number` parts as `tensor_split` does: of 8 rows in 3 parts they have 3, 3
/// and 2. Of fewer rows than parts each is a part of its own. One part is the batch as it is, whose
/// tensors may have different sizes (a graph's nodes and edges). Otherwise throws, naming the
/// sizes, for tensors of different sizes along dimension 0 or without dimensions; and always for no
/// tensors, and for no rows.
MicroBatches split_batch(const std::vector<at::Tensor>& batch, int number);

}  // namespace oslo
