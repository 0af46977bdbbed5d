#pragma once

#include <memory>
#include <optional>

#include "parallelizers/data/sharded/host/deposits.h"
#include "parallelizers/data/sharded/shard_buckets.h"

namespace oslo {

/// A step of several backward passes over weights that replicas keep parts of. What their passes
/// leave to be averaged (over one copy of the weights on a host, and over copies of the parts) is
/// averaged once, behind them. One at a time; all replicas have as many.
class ShardStep {
 public:
  explicit ShardStep(std::shared_ptr<ShardBuckets> shards);
  /// Where `finish` was not reached the step has thrown, which ranks that wait for it are told.
  ~ShardStep();
  ShardStep(const ShardStep&) = delete;
  ShardStep& operator=(const ShardStep&) = delete;

  /// Averages, and lets whole weights go. Collective over the replicas and the copies.
  void finish();

 private:
  const std::shared_ptr<ShardBuckets> shards_;
  const bool synchronized_;  ///< before
  std::optional<Deposits::Step> deposits_;
};

}  // namespace oslo
