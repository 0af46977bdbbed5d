#include "parallelizers/data/sharded/shard_buckets.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace oslo {

/// The engine keeps it until the end of a pass, and lets go of it where the pass throws.
class ShardBuckets::Pass {
 public:
  explicit Pass(std::weak_ptr<ShardBuckets> all) : all_(std::move(all)) {}
  ~Pass() {
    if (!done_) end(/*threw=*/true);
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  void ends() {
    done_ = true;
    end(/*threw=*/false);
  }

 private:
  /// What is kept until backward has used it may be there for another pass.
  void end(bool threw) {
    const auto all = all_.lock();
    if (all) all->ahead_.end(GatherAhead::Direction::backward);
    if (all && (threw || all->keep_ == KeepGathered::until_next)) all->let_all_go();
  }

  const std::weak_ptr<ShardBuckets> all_;
  bool done_ = false;
};

void ShardBuckets::add(const std::shared_ptr<GatheredWeights>& bucket, bool of_layer) {
  buckets_.push_back({bucket, of_layer});
}

std::string ShardBuckets::name_of(size_t number) const {
  const auto bucket = number < buckets_.size() ? buckets_[number].bucket.lock()
                                               : std::shared_ptr<GatheredWeights>();
  return bucket ? bucket->name() : c10::str("bucket ", number);
}

void ShardBuckets::about_to_gather(const GatheredWeights& bucket) {
  ahead_.about_to_gather(bucket);
  if (keep_ != KeepGathered::until_next) return;
  const auto entry = std::find_if(buckets_.begin(), buckets_.end(), [&](const Entry& each) {
    return each.bucket.lock().get() == &bucket;
  });
  if (entry == buckets_.end() || !entry->of_layer) return;
  entry->gathered = ++gathers_;
  make_room_for(bucket);
}

/// Whole layers have the room of the largest one. Those that were gathered last stay in it: a small
/// one that is used around another is not gathered twice.
void ShardBuckets::make_room_for(const GatheredWeights& layer) {
  int64_t room = 0;
  std::vector<std::pair<uint64_t, std::shared_ptr<GatheredWeights>>> others;
  for (const Entry& entry : buckets_) {
    const auto bucket = entry.bucket.lock();
    if (!bucket || !entry.of_layer) continue;
    room = std::max(room, bucket->whole_bytes());
    if (bucket.get() != &layer) others.emplace_back(entry.gathered, bucket);
  }
  room -= layer.whole_bytes();
  std::sort(others.rbegin(), others.rend());
  for (const auto& [_, bucket] : others) {
    const int64_t bytes = bucket->gathered_bytes();
    if (bytes > room) {
      bucket->let_go();
    } else {
      room -= bytes;
    }
  }
}

/// Outside of forwards and passes, whose ends are known, nothing is expected.
void ShardBuckets::has_gathered(const std::shared_ptr<GatheredWeights>& bucket) {
  using Direction = GatherAhead::Direction;
  if (torch::autograd::get_current_graph_task_id() != -1) {
    if (!pass_.expired()) ahead_.has_gathered(bucket, Direction::backward);
  } else if (in_forward_) {
    ahead_.has_gathered(bucket, Direction::forward);
  }
}

void ShardBuckets::forward_begins() {
  ahead_.end(GatherAhead::Direction::forward);  // of one that has thrown
  in_forward_ = true;
  for (const Entry& entry : buckets_) {
    if (const auto bucket = entry.bucket.lock()) bucket->renew_kept();
  }
}

void ShardBuckets::forward_ended() {
  in_forward_ = false;
  ahead_.end(GatherAhead::Direction::forward);
  if (keep_ == KeepGathered::until_next) let_all_go();
}

void ShardBuckets::let_all_go() {
  for (const Entry& entry : buckets_) {
    if (const auto bucket = entry.bucket.lock()) bucket->let_go();
  }
}

void ShardBuckets::fill() {
  for (const Entry& entry : buckets_) {
    if (const auto bucket = entry.bucket.lock()) bucket->fill();
  }
}

void ShardBuckets::about_to_use() {
  if (keep_ == KeepGathered::until_written || !pass_.expired()) return;
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  const auto pass = std::make_shared<Pass>(weak_from_this());
  pass_ = pass;
  torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->ends(); });
}

void ShardBuckets::used_in_backward(GatheredWeights& bucket) {
  if (keep_ != KeepGathered::until_written) bucket.let_go();
}

void ShardBuckets::gradients_come() {
  copies_.gradients_come([own = shared_from_this()] { own->average_over_copies(); });
}

void ShardBuckets::average_over_copies() {
  std::vector<at::Tensor> all;
  for (const Entry& entry : buckets_) {
    const auto bucket = entry.bucket.lock();
    if (!bucket) continue;
    for (const at::Tensor& part : bucket->parts()) all.push_back(part);
  }
  copies_.average(all);
}

int64_t ShardBuckets::gathered_bytes() const {
  int64_t bytes = 0;
  for (const Entry& entry : buckets_) {
    if (const auto bucket = entry.bucket.lock()) bytes += bucket->gathered_bytes();
  }
  return bytes;
}

}  // namespace oslo
