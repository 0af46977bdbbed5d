#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// What of a block of keys queries see.
struct BlockView {
  bool nothing = false;
  bool causal = false;  ///< the i-th query sees the first i + 1 keys
  at::Tensor mask;      ///< added to scores, or true where seen; undefined: all is
};

/// Queries with one block of keys and values: the block's own attention, and for each query the
/// logarithm of the sum of its scores' exponentials (-inf where it sees nothing, whose attention is
/// zero), by which blocks are put together.
struct BlockAttention {
  at::Tensor output, log_sum;
};
BlockAttention attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const BlockView& view, double scale);

/// `sum` with another block of the same queries in it. Half types are summed as floats.
void add_block(BlockAttention& sum, const BlockAttention& block);

struct BlockGradients {
  at::Tensor query, key, value;
};
/// What one block adds to the gradients, where `all` is the attention of all blocks together.
BlockGradients attend_backward(const at::Tensor& gradient, const at::Tensor& query,
                               const at::Tensor& key, const at::Tensor& value,
                               const BlockAttention& all, const BlockView& view, double scale);

}  // namespace oslo
