#include "mpu/transport/counted_process_group.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <exception>

#include "mpu/base/group_key.h"
#include "mpu/transport/presence/presence.h"

namespace oslo {

c10::intrusive_ptr<c10d::Work> CountedProcessGroup::barrier(const c10d::BarrierOptions& options) {
  const bool nccl = getBackendType() == BackendType::NCCL;
  const at::Device device = options.device.value_or(nccl ? at::kCUDA : at::kCPU);
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("c10d::barrier", "")
          .typed<c10::intrusive_ptr<c10d::Work>(at::Tensor, const c10::intrusive_ptr<ProcessGroup>&,
                                                const std::vector<int64_t>&, bool, int64_t)>();
  const at::Tensor token = at::empty({1}, at::device(device).dtype(at::kByte));
  std::vector<int64_t> ids = options.device_ids;
  // NCCL does not ask the tensor, and would guess by the rank.
  if (ids.empty() && token.is_cuda()) ids.push_back(token.get_device());
  return op.call(token, c10::intrusive_ptr<ProcessGroup>::unsafe_reclaim_from_nonowning(this), ids,
                 options.asyncOp, options.timeout.count());
}

CountedProcessGroup::~CountedProcessGroup() {
  if (presence_ && std::uncaught_exceptions() > 0) {
    presence_->tell_that_this_rank("has thrown an exception");
  }
}

void CountedProcessGroup::abort() {
  if (presence_ && getSize() > 1) {  // in a group of one nobody waits
    presence_->tell_that_this_rank("has aborted group " + name_in_key(getGroupName()));
  }
  c10d::ProcessGroup::abort();
  if (device_messages_) device_messages_->abort();
}

}  // namespace oslo
