#include "mpu/group/untagged_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// The allocator must not give the memory to others before the current stream is done with it.
void use_on_current_stream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

}  // namespace

void UntaggedTensors::take(const at::Tensor& bytes, int64_t number, const Carrier& carrier) {
  Kept found;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto node = kept_.extract(number)) {
      found = std::move(node.mapped());
    }
    while (!found.work) {
      OSLO_CHECK(next_ <= number, "tensor number ", number, " of ", next_, " was taken before");
      const int64_t size = carrier.next_size();
      const bool wanted = next_ == number;
      OSLO_CHECK(!wanted || size == bytes.numel(), "tensor number ", number, " has ", size,
                 " bytes, and its message says ", bytes.numel());
      const at::Tensor into = wanted ? bytes : at::empty({size}, bytes.options());
      Kept begun{into, carrier.receive(into)};
      (wanted ? found : kept_[next_]) = std::move(begun);
      ++next_;
    }
  }
  carrier.wait(*found.work);
  if (found.bytes.is_same(bytes)) return;
  OSLO_CHECK(found.bytes.numel() == bytes.numel(), "tensor number ", number, " has ",
             found.bytes.numel(), " bytes, and its message says ", bytes.numel());
  at::Tensor(bytes).copy_(found.bytes, /*non_blocking=*/true);
  use_on_current_stream(found.bytes);
}

}  // namespace oslo
