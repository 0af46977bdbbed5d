#include "mpu/transport/counted_process_group.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

namespace oslo {

c10::intrusive_ptr<c10d::Work> CountedProcessGroup::barrier(const c10d::BarrierOptions& options) {
  const bool nccl = getBackendType() == BackendType::NCCL;
  const at::Device device = options.device.value_or(nccl ? at::kCUDA : at::kCPU);
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("c10d::barrier", "")
          .typed<c10::intrusive_ptr<c10d::Work>(at::Tensor, const c10::intrusive_ptr<ProcessGroup>&,
                                                const std::vector<int64_t>&, bool, int64_t)>();
  return op.call(at::empty({1}, at::device(device).dtype(at::kByte)),
                 c10::intrusive_ptr<ProcessGroup>::unsafe_reclaim_from_nonowning(this),
                 options.device_ids, options.asyncOp, options.timeout.count());
}

c10::intrusive_ptr<c10d::Backend> CountedProcessGroup::device_messages(int from, int to) {
  if (from < to || !make_downward_) return getBackend(c10::kCUDA);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!downward_) downward_ = make_downward_();
  return downward_;
}

}  // namespace oslo
