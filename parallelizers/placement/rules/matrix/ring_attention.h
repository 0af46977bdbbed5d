#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "mpu/group/group.h"

namespace oslo {

/// Attention over a sequence that lies in parts over a group.
struct Ring {
  std::shared_ptr<Group> group;
  double scale = 1;
  bool causal = false;
  /// Where this rank's queries stand in the sequence, and each rank's keys.
  at::Tensor queries;
  std::vector<at::Tensor> keys;
  /// Of this rank's queries with all keys, (.., queries, keys): what is added to scores, or true
  /// where a key is seen; undefined: none. It gets no gradient.
  at::Tensor mask;
};

/// Each rank's queries (.., heads, positions, features) with all keys and values, of which it has a
/// part: these go round, a rank's part at a time, while what they add is computed (Ring Attention,
/// arXiv 2310.01889; sums as in FlashAttention, arXiv 2307.08691). Heads of keys may be a fraction
/// of the queries'. With n ranks n - 1 messages a rank forward and 2n - 1 backward; kept for
/// backward is what is this rank's alone. Parts that no query here sees are passed on unread.
/// Differentiable once.
at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::shared_ptr<const Ring>& ring);

}  // namespace oslo
