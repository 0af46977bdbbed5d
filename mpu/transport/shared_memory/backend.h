#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace oslo {
namespace shared_memory {
class Executor;
class Messenger;
class Segment;
struct Task;
}  // namespace shared_memory

/// Collectives of CPU tensors between ranks of one host, at the speed of its memory. Ranks are
/// processes of one user, or threads of one process. An ordinary c10d backend: it takes every dtype
/// that LibTorch's Gloo takes, and bfloat16 and half; results have the same bits on every rank and
/// in every run (rank 0's value op rank 1's op ..., in this order).
///
/// A group of n ranks takes n (3 chunk_bytes + 4 KiB) of shared memory, all of it at once; the
/// first message from one rank to another takes ring_bytes more. All of it is anonymous, and goes
/// when the last rank ends, however it ends.
///
/// Operations of a group are done in the order of the calls, which is the same on all ranks, as
/// c10d asks; sends and receives are apart from that. A rank that waits does the work itself;
/// `asyncOp = false` in an operation's options says that the caller will wait, so that nobody else
/// is woken.
///
/// When a rank has ended, is late, or does something else than the others, all of them get an
/// `oslo::Error` from the operation's Work that names rank, group, operation and its number, and so
/// does every later operation of the group.
class SharedMemoryBackend final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("shm", timeout) {}

    /// Of each rank's three slots; a multiple of 64, at least 256 for each rank. Large tensors move
    /// in chunks of it.
    size_t chunk_bytes = 256 * 1024;
    /// What can be under way from one rank to another without being received.
    size_t ring_bytes = 256 * 1024;
    /// Of messages that were sent before one that has been received, and wait to be asked for:
    /// with more of them, or a larger one, the group fails. A single message may be larger.
    size_t aside_bytes = size_t{1} << 30;
    /// Ranks with different ones do not share memory; host_identity() unless given. (Tests give
    /// it.)
    std::string host;
    /// For ranks that are threads of one process: memory that each of them has joined already
    /// (Member::join), used without meeting. Sanitizers see what happens in it.
    std::shared_ptr<shared_memory::Segment> memory;
  };

  /// Meets the other ranks over `store`. Collective over them: all get it, or all throw.
  SharedMemoryBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                      c10::intrusive_ptr<Options> options = c10::make_intrusive<Options>());
  ~SharedMemoryBackend() override;

  const std::string getBackendName() const override { return "shm"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_rows,
                                               std::vector<int64_t>& input_rows,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  /// How many bytes of other ranks' memory this one reads for an all-reduce of `bytes`.
  int64_t all_reduce_brings(int64_t bytes) const;

  /// Whether an all-reduce of `bytes`, or a reduce-scatter of `bytes` in even parts, is one round:
  /// started, it then needs no thread until somebody waits for it.
  bool in_one_round(int64_t bytes) const;

  /// Every operation of the group that is not done, and every later one, fails on all ranks.
  void abort() override;
  /// Does what has been started, then leaves the group; the destructor does it, too.
  void shutdown() override;

 private:
  std::shared_ptr<shared_memory::Task> task(c10d::OpType type, std::vector<at::Tensor> outputs,
                                            std::chrono::milliseconds timeout,
                                            bool asynchronous) const;
  c10::intrusive_ptr<c10d::Work> message(std::vector<at::Tensor>& tensors, bool sends, int peer,
                                         int tag);
  c10::intrusive_ptr<c10d::Work> start(std::shared_ptr<shared_memory::Task> task);

  c10::intrusive_ptr<Options> options_;
  std::shared_ptr<shared_memory::Executor> executor_;
  std::shared_ptr<shared_memory::Messenger> messenger_;
};

/// The above as what LibTorch's process groups take.
c10::intrusive_ptr<c10d::Backend> make_shared_memory_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    c10::intrusive_ptr<SharedMemoryBackend::Options> options =
        c10::make_intrusive<SharedMemoryBackend::Options>());

}  // namespace oslo
