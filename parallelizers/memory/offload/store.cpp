#include "parallelizers/memory/offload/store.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/memory/saved_geometry.h"

namespace oslo::offload {
namespace {

/// A view of less than this part of its memory stays: whoever holds the rest keeps it there.
constexpr int64_t kSmallestPart = 8;
/// So many saved memories are looked at, at the most, for what to bring back next.
constexpr size_t kMostLookedAt = 64;

}  // namespace

void Store::stay(const std::vector<at::Tensor>& tensors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    held_.push_back(tensor.storage());
    stays_.insert(tensor.storage().unsafeGetStorageImpl());
  }
}

bool Store::may_move(const at::Tensor& saved) const {
  if (saved.is_cpu() || saved.is_meta() || saved.layout() != at::kStrided || saved.is_quantized() ||
      saved.key_set().has(kPlacedKey) || !saved.has_storage() || saved.is_inference()) {
    return false;
  }
  const auto bytes = static_cast<int64_t>(saved.storage().nbytes());
  return bytes >= at_least_ && static_cast<int64_t>(saved.nbytes()) >= bytes / kSmallestPart &&
         stays_.count(saved.storage().unsafeGetStorageImpl()) == 0;
}

UnpackSavedTensor Store::pack(const at::Tensor& saved) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!may_move(saved)) return {};
  std::shared_ptr<MovedMemory> memory = memory_of(saved);
  memory->saved_once_more();
  // The last that was saved stays, however large.
  while (waiting_ > ahead_ && next_to_move_ + 1 < first_ + entries_.size()) move_oldest();
  return [store = shared_from_this(), memory = std::move(memory), view = geometry_of(saved)] {
    const std::lock_guard<std::mutex> held(store->mutex_);
    const at::Tensor tensor = lay(view, memory->take());
    store->fetch_before(memory->place());
    return tensor;
  };
}

std::shared_ptr<MovedMemory> Store::memory_of(const at::Tensor& saved) {
  const c10::StorageImpl* const storage = saved.storage().unsafeGetStorageImpl();
  const auto found = known_.find(storage);
  if (found != known_.end()) {
    auto memory = found->second.lock();
    if (memory && memory->is_of(saved)) return memory;
  }
  forget_the_dead();
  const size_t place = first_ + entries_.size();
  auto memory = std::make_shared<MovedMemory>(saved, place, copies_of(saved.device()));
  known_[storage] = memory;
  entries_.push_back({memory, storage, memory->bytes()});
  waiting_ += memory->bytes();
  return memory;
}

/// Graphs before the oldest that lives.
void Store::forget_the_dead() {
  while (!entries_.empty() && entries_.front().memory.expired()) {
    if (next_to_move_ == first_) {
      waiting_ -= entries_.front().bytes;
      ++next_to_move_;
    }
    const auto known = known_.find(entries_.front().storage);
    if (known != known_.end() && known->second.expired()) known_.erase(known);
    entries_.pop_front();
    ++first_;
  }
}

void Store::move_oldest() {
  const Entry& oldest = entries_[next_to_move_++ - first_];
  waiting_ -= oldest.bytes;
  if (const auto memory = oldest.memory.lock()) {
    memory->move();
    moved_ += oldest.bytes;
  }
}

void Store::fetch_before(size_t place) {
  int64_t bytes = 0;
  const size_t end = place - std::min(place - first_, kMostLookedAt);
  while (place-- > end) {
    const auto memory = entries_[place - first_].memory.lock();
    if (!memory || !memory->will_be_asked_for()) continue;
    bytes += memory->bytes();
    if (bytes > ahead_) return;
    memory->fetch();
  }
}

c10::Stream Store::copies_of(c10::Device device) {
  const auto key = std::make_pair(device.type(), device.index());
  const auto found = copies_.find(key);
  if (found != copies_.end()) return found->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return copies_.emplace(key, guard.getStreamFromGlobalPool(device)).first->second;
}

int64_t Store::moved() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return moved_;
}

}  // namespace oslo::offload
