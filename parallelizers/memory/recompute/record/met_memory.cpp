#include "parallelizers/memory/recompute/record/met_memory.h"

#include "parallelizers/placement/carrier/local_of.h"

namespace oslo::recompute {
namespace {

c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const at::Tensor local = local_of(tensor);
  if (!local.defined() || !local.has_storage()) return nullptr;
  return local.storage().unsafeGetStorageImpl();
}

}  // namespace

int MetMemory::find(const at::Tensor& tensor) const {
  const auto found = numbers_.find(memory_of(tensor));
  return found == numbers_.end() ? kNone : found->second;
}

int MetMemory::meet(const at::Tensor& tensor, bool outside) {
  c10::StorageImpl* const memory = memory_of(tensor);
  if (memory == nullptr) return kNone;
  const auto [found, is_new] = numbers_.emplace(memory, segment_.storages.size());
  if (is_new) {
    MetStorage storage;
    storage.impl = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory));
    storage.outside = outside;
    segment_.storages.push_back(std::move(storage));
  }
  return found->second;
}

}  // namespace oslo::recompute
