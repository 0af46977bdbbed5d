#include "parallelizers/data/sharded/shard_step.h"

#include <utility>

#include "parallelizers/data/sharded/host/host_weights.h"

namespace oslo {

ShardStep::ShardStep(std::shared_ptr<ShardBuckets> shards)
    : shards_(std::move(shards)), synchronized_(shards_->copies().synchronizes()) {
  shards_->copies().synchronize(false);
  if (shards_->host()) deposits_.emplace(shards_->host()->deposits());
}

ShardStep::~ShardStep() {
  shards_->copies().synchronize(synchronized_);
}

void ShardStep::finish() {
  if (deposits_) deposits_->finish();
  shards_->average_over_copies();
  shards_->let_all_go();
}

}  // namespace oslo
