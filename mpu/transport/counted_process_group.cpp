#include "mpu/transport/counted_process_group.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

namespace oslo {
namespace {

/// NCCL makes two ranks' communicator when they have their first message over it, and each waits
/// there, on the host, for the other. Here both directions' are made at once, in one order: ranks
/// of which each sends first would wait in one each.
void make_communicators(c10d::Backend& upward, c10d::Backend& downward, int rank, int peer,
                        c10::Device device) {
  std::vector<at::Tensor> sent{at::zeros({1}, at::device(device).dtype(at::kByte))};
  std::vector<at::Tensor> received{at::empty_like(sent[0])};
  const bool below = rank < peer;
  const auto first = below ? upward.send(sent, peer, 0) : upward.recv(received, peer, 0);
  const auto second = below ? downward.recv(received, peer, 0) : downward.send(sent, peer, 0);
  first->wait();  // the stream, not the host
  second->wait();
}

}  // namespace

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

c10::intrusive_ptr<c10d::Backend> CountedProcessGroup::device_messages(int from, int to,
                                                                       c10::Device device) {
  auto upward = getBackend(c10::kCUDA);
  if (!make_downward_) return upward;
  const int peer = from == getRank() ? to : from;
  c10::intrusive_ptr<c10d::Backend> downward;
  std::once_flag* met = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!downward_) downward_ = make_downward_();
    downward = downward_;
    met = &met_[peer];
  }
  std::call_once(*met, [&] { make_communicators(*upward, *downward, getRank(), peer, device); });
  return from < to ? upward : downward;
}

}  // namespace oslo
