#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "parallelizers/data/sharded/host/deposits.h"
#include "parallelizers/data/sharded/host/host_ranks.h"
#include "parallelizers/data/sharded/host/host_weight.h"
#include "parallelizers/data/sharded/host/write_turns.h"

namespace oslo {

/// Where the parts of a weight are stretches of its memory: the dimension that is outermost there.
/// `whole`: its sizes over tensor ranks, all of which take the same dimension, however much of it
/// each has in `own`.
int64_t outermost_dimension(const at::Tensor& own, c10::IntArrayRef whole);

/// A model's weights in memory that its replicas share on one host: whole, and there once. Each
/// rank's part is its stretch of a whole weight. Of those that are not cut, their gradients alone
/// are there. Those on other pipeline stages have addresses, and no memory.
class HostWeights {
 public:
  /// Collective over `group`, of which HostRanks::can_share.
  HostWeights(const std::shared_ptr<Group>& group, std::vector<HostWeight> weights);

  /// Whether a weight lies there.
  bool has(size_t weight) const { return weights_[weight].is_cut(); }
  /// Memory for one that does, and has come to this rank's pipeline stages since.
  void make_room(size_t weight) const;
  /// One that does, and this rank's part of it: ordinary tensors over the shared memory.
  at::Tensor whole(size_t weight) const;
  at::Tensor part(size_t weight) const;
  /// Whether a tensor lies over the shared memory.
  bool holds(const at::Tensor& tensor) const;

  WriteTurns& turns() { return turns_; }
  Deposits& deposits() { return deposits_; }

 private:
  struct Places {
    std::vector<size_t> weights, deposits;  ///< offsets
    size_t committed = 0;                   ///< bytes from the beginning on
    size_t end_of_weights = 0, bytes_of_deposits = 0;
  };
  static Places places_of(const std::vector<HostWeight>& weights, int ranks);
  HostWeights(const std::shared_ptr<Group>& group, std::vector<HostWeight> weights,
              const Places& places);

  const std::vector<HostWeight> weights_;
  const std::vector<size_t> offsets_;
  const std::shared_ptr<HostRanks> ranks_;
  WriteTurns turns_;
  Deposits deposits_;
};

}  // namespace oslo
