#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parallelizers/memory/offload/moved_memory.h"
#include "parallelizers/memory/saved_tensors.h"

namespace oslo::offload {

/// What the operators of a forward have saved, in order (offload_scope.h). On any threads.
class Store : public std::enable_shared_from_this<Store> {
 public:
  Store(int64_t at_least, int64_t ahead) : at_least_(at_least), ahead_(ahead) {}

  /// The memory of these is not moved from now on.
  void stay(const std::vector<at::Tensor>& tensors);

  /// For a SavedTensorScope.
  UnpackSavedTensor pack(const at::Tensor& saved);

  int64_t moved() const;

 private:
  /// One memory, as it was saved; graphs hold it.
  struct Entry {
    std::weak_ptr<MovedMemory> memory;
    const c10::StorageImpl* storage;  ///< to be compared only
    int64_t bytes;
  };

  bool may_move(const at::Tensor& saved) const;
  std::shared_ptr<MovedMemory> memory_of(const at::Tensor& saved);
  void forget_the_dead();
  void move_oldest();
  void fetch_before(size_t place);
  c10::Stream copies_of(c10::Device device);

  const int64_t at_least_, ahead_;
  std::unordered_set<const c10::StorageImpl*> stays_;
  std::vector<c10::Storage> held_;  ///< those, so that nothing else gets their addresses

  mutable std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, c10::Stream> copies_;
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<MovedMemory>> known_;
  std::deque<Entry> entries_;
  size_t first_ = 0;         ///< place of the first of these
  size_t next_to_move_ = 0;  ///< a place
  int64_t waiting_ = 0;      ///< bytes from there on
  int64_t moved_ = 0;
};

}  // namespace oslo::offload
