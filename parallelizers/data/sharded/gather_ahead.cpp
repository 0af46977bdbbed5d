#include "parallelizers/data/sharded/gather_ahead.h"

#include <utility>

namespace oslo {

std::shared_ptr<Gatherable> GatherOrder::next_after(const std::shared_ptr<Gatherable>& bucket) {
  const size_t place = now_.size();
  now_.push_back(bucket);
  as_last_ = as_last_ && place < last_.size() && last_[place].lock() == bucket;
  return as_last_ && place + 1 < last_.size() ? last_[place + 1].lock() : nullptr;
}

void GatherOrder::end() {
  if (!now_.empty()) last_ = std::exchange(now_, {});
  as_last_ = true;
}

void GatherAhead::about_to_gather(const Gatherable& bucket) {
  if (expected_.lock().get() != &bucket) drop();
  expected_.reset();
}

void GatherAhead::has_gathered(const std::shared_ptr<Gatherable>& bucket, Direction direction) {
  GatherOrder& order = direction == Direction::forward ? forward_ : backward_;
  const auto next = order.next_after(bucket);
  if (!next) return;
  expected_ = next;
  next->gather_ahead();
}

void GatherAhead::end(Direction direction) {
  drop();
  (direction == Direction::forward ? forward_ : backward_).end();
}

void GatherAhead::drop() {
  if (const auto expected = expected_.lock()) expected->drop_ahead();
  expected_.reset();
}

}  // namespace oslo
