#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// How the replicas' parts of one weight make up the whole: one stretch of a dimension each, or, of
/// a weight that cannot be cut, all of it each.
struct ShardPieces {
  /// `own`: what tensor ranks leave of the weight to this one.
  ShardPieces(const at::Tensor& own, const Layout& layout);

  int64_t dim;  ///< -1: each replica has all of it
  CutPtr cut;   ///< of it, over the replicas; null where each has all
  int replicas;
  c10::DimVector sizes;    ///< of the whole, as far as tensor ranks leave it to this one
  c10::DimVector strides;  ///< in the order of the author's (channels-last); without gaps

  int64_t elements() const { return c10::multiply_integers(sizes); }
  int64_t elements_on(int replica) const;
  c10::DimVector sizes_on(int replica) const;
  /// Where that begins along `dim`, of a weight that is cut.
  int64_t begin_on(int replica) const;
  /// Those of a whole tensor that are not empty, with their replicas; views of it.
  std::vector<std::pair<int, at::Tensor>> of(const at::Tensor& whole) const;
};

/// Several weights' parts, one behind the other on each replica, and the replicas' behind each
/// other: what one collective moves.
class JoinedShards {
 public:
  /// `beside`: elements behind the parts of each replica.
  JoinedShards(const std::vector<const ShardPieces*>& weights, int replicas, int64_t beside = 0);

  /// On each replica.
  const std::vector<int64_t>& sizes() const { return sizes_; }
  int64_t elements() const { return begins_.back(); }

  /// Copies weight by weight, in their order, between `joined` and whole tensors.
  void read(const at::Tensor& joined, const at::Tensor& whole);
  void write(const at::Tensor& joined, const at::Tensor& whole);
  void write_zeros(const at::Tensor& joined);
  /// What is behind the parts of a replica.
  at::Tensor beside(const at::Tensor& joined, int replica) const;

 private:
  template <typename Copy>
  void next(const at::Tensor& joined, const Copy& copy);

  const std::vector<const ShardPieces*> weights_;
  const int64_t beside_;
  std::vector<int64_t> sizes_, begins_, at_;
  size_t weight_ = 0;
};

}  // namespace oslo
