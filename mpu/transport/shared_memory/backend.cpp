#include "mpu/transport/shared_memory/backend.h"

#include <exception>

#include "mpu/base/error.h"
#include "mpu/base/group_key.h"
#include "mpu/transport/presence/host_identity.h"
#include "mpu/transport/shared_memory/collective/executor.h"
#include "mpu/transport/shared_memory/messenger.h"
#include "mpu/transport/shared_memory/segment/meeting.h"

namespace oslo {
namespace {

using namespace shared_memory;
using Tensors = std::vector<at::Tensor>;

std::unique_ptr<Member> join(c10d::Store& store, int rank, int size,
                             const SharedMemoryBackend::Options& options) {
  OSLO_CHECK(size >= 1 && rank >= 0 && rank < size, "rank ", rank, " is not in a group of ", size);
  const size_t chunk = options.chunk_bytes;
  OSLO_CHECK(chunk % 64 == 0 && chunk >= 256 * static_cast<size_t>(size), "chunk_bytes is ", chunk,
             "; a group of ", size, " ranks needs a multiple of 64 that is at least ", 256 * size);
  OSLO_CHECK(options.ring_bytes % 64 == 0 && options.ring_bytes >= 4096, "ring_bytes is ",
             options.ring_bytes, "; it has to be a multiple of 64 that is at least 4096");
  const SegmentLayout layout(size, chunk, options.ring_bytes);
  std::shared_ptr<Segment> segment = options.memory;
  if (!segment) {
    const std::string host = options.host.empty() ? host_identity() : options.host;
    const Meeting meeting{store,           options.group_name,           rank, size, host,
                          options.timeout, options.global_ranks_in_group};
    segment = share_segment(meeting, layout.bytes,
                            [&](Segment& memory) { Member::join(memory, layout, rank); });
  }
  return std::make_unique<Member>(std::move(segment), layout, rank,
                                  Member::Names{options.group_name, options.global_ranks_in_group});
}

}  // namespace

SharedMemoryBackend::SharedMemoryBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                         int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      executor_(std::make_shared<Executor>(join(*store, rank, size, *options_))),
      messenger_(std::make_shared<Messenger>(executor_, options_->aside_bytes)) {}

SharedMemoryBackend::~SharedMemoryBackend() {
  // What has been started still arrives, unless this rank is failing.
  if (std::uncaught_exceptions() > 0) abort();
  shutdown();
}

void SharedMemoryBackend::abort() {
  auto& member = executor_->member();
  member.abort(member.name_of_rank(getRank()) + " has aborted group " +
               name_in_key(options_->group_name));
}

void SharedMemoryBackend::shutdown() {
  executor_->finish();
  messenger_->stop();
  executor_->stop();
}

uint64_t SharedMemoryBackend::getSequenceNumberForGroup() {
  return executor_->sequence();
}

std::shared_ptr<Task> SharedMemoryBackend::task(c10d::OpType type, Tensors outputs,
                                                std::chrono::milliseconds timeout,
                                                bool asynchronous) const {
  auto task = std::make_shared<Task>();
  task->type = type;
  task->outputs = std::move(outputs);
  task->timeout = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  task->caller_waits = !asynchronous;
  return task;
}

c10::intrusive_ptr<c10d::Work> SharedMemoryBackend::start(std::shared_ptr<Task> task) {
  return executor_->start(std::move(task));
}

c10::intrusive_ptr<c10d::Work> SharedMemoryBackend::barrier(const c10d::BarrierOptions& options) {
  auto barrier = task(c10d::OpType::BARRIER, {}, options.timeout, options.asyncOp);
  barrier->collectives.push_back(make_barrier());
  return start(std::move(barrier));
}

void SharedMemoryBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool) {
  barrier(options)->wait();
}

c10::intrusive_ptr<c10d::Work> SharedMemoryBackend::message(Tensors& tensors, bool sends, int peer,
                                                            int tag) {
  OSLO_CHECK(tensors.size() == 1, sends ? "send" : "receive", " takes one tensor, and got ",
             tensors.size());
  OSLO_CHECK(peer < size_, "rank ", peer, " is not in a group of ", size_);
  return messenger_->start(
      std::make_shared<Transfer>(tensors[0], sends, peer, tag, options_->timeout));
}

c10::intrusive_ptr<c10d::Work> SharedMemoryBackend::send(Tensors& tensors, int to, int tag) {
  OSLO_CHECK(to >= 0, "send to rank ", to);
  return message(tensors, /*sends=*/true, to, tag);
}

c10::intrusive_ptr<c10d::Work> SharedMemoryBackend::recv(Tensors& tensors, int from, int tag) {
  OSLO_CHECK(from >= 0, "receive from rank ", from);
  return message(tensors, /*sends=*/false, from, tag);
}

c10::intrusive_ptr<c10d::Work> SharedMemoryBackend::recvAnysource(Tensors& tensors, int tag) {
  return message(tensors, /*sends=*/false, /*peer=*/-1, tag);
}

c10::intrusive_ptr<c10d::Backend> make_shared_memory_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    c10::intrusive_ptr<SharedMemoryBackend::Options> options) {
  return c10::make_intrusive<SharedMemoryBackend>(store, rank, size, std::move(options));
}

}  // namespace oslo
