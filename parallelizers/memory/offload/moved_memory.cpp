#include "parallelizers/memory/offload/moved_memory.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "parallelizers/memory/saved_geometry.h"

namespace oslo::offload {
namespace {

/// Below autograd: a copy is no operator of the user's, and counts no version.
void copy_bytes(const at::Tensor& from, at::Tensor to) {
  const at::AutoDispatchBelowADInplaceOrView below;
  to.copy_(from, /*non_blocking=*/true);
}

at::Tensor empty_bytes(int64_t bytes, at::TensorOptions options) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::empty({bytes}, options.dtype(at::kByte));
}

}  // namespace

MovedMemory::MovedMemory(const at::Tensor& saved, size_t place, c10::Stream copies)
    : place_(place),
      bytes_(saved.storage().nbytes()),
      device_(saved.device()),
      copies_(copies),
      keys_(saved.key_set()),
      version_(saved.unsafeGetTensorImpl()->version_counter().current_version()),
      memory_(saved.storage()),
      last_(memory_.getWeakStorageImpl()) {}

bool MovedMemory::is_of(const at::Tensor& saved) const {
  return last_._unsafe_get_target() == saved.storage().unsafeGetStorageImpl() &&
         version_ == saved.unsafeGetTensorImpl()->version_counter().current_version();
}

at::Tensor MovedMemory::all_bytes(const c10::Storage& memory) const {
  return lay({{bytes()}, {1}, 0, keys_, caffe2::TypeMeta::Make<uint8_t>(), device_}, memory);
}

/// The allocator must not give the memory to others before `stream` is done with it.
void MovedMemory::use_on(const c10::Stream& stream) const {
  c10::impl::VirtualGuardImpl(device_.type()).recordDataPtrOnStream(memory_.data_ptr(), stream);
}

void MovedMemory::move() {
  if (!memory_ || host_.defined()) return;
  host_ = empty_bytes(bytes(), at::TensorOptions(at::kCPU).pinned_memory(true));
  c10::Event ready(device_.type());
  ready.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  ready.block(copies_);
  const c10::StreamGuard guard(copies_);
  copy_bytes(all_bytes(memory_), host_);
  use_on(copies_);
  memory_ = {};
}

void MovedMemory::fetch() {
  if (memory_) return;
  if (auto held = last_.lock()) {  // by the program, or by a backward pass
    memory_ = c10::Storage(std::move(held));
    return;
  }
  const c10::StreamGuard guard(copies_);
  const at::Tensor back = empty_bytes(bytes(), at::TensorOptions(device_));
  copy_bytes(host_, back);
  came_.emplace(device_.type());
  came_->record(copies_);
  memory_ = back.storage();
  last_ = memory_.getWeakStorageImpl();
}

c10::Storage MovedMemory::take() {
  fetch();
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  if (came_) {
    came_->block(current);
    use_on(current);
  }
  --asked_for_;
  c10::Storage taken = memory_;
  if (host_.defined() && !will_be_asked_for()) memory_ = {};
  return taken;
}

}  // namespace oslo::offload
