#pragma once

#include <c10/core/thread_pool.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

namespace oslo {

/// Collectives and messages of a device's tensors by way of the host's memory, for ranks that share
/// a GPU, which NCCL refuses: copied out into pinned memory, moved by `inner` (a backend of CPU
/// tensors that nothing else uses), copied in again. Results are `inner`'s: the same bits on all
/// ranks over shared memory.
///
/// Streams: an operation reads its tensors after what the current stream holds when it is called,
/// and `wait` has the then current stream wait for the result, not the host: the copies run on
/// streams of the backend's own, and what does not depend on them overlaps. `wait` itself returns
/// when the other ranks have done their part. All-reduce and broadcast go in chunks, so that
/// copying out, moving and copying in overlap too. An operation's tensors are kept alive until it
/// is done, and the allocator knows the streams that use them.
///
/// Collectives are done one after the other in the order of the calls, so are sends to one rank,
/// and so are receives from one. Tensors on the CPU are taken too, and copied like those of a
/// device (tests).
class StagedBackend final : public c10d::Backend {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// `chunk_bytes` is what all-reduce and broadcast copy at once.
  StagedBackend(int rank, int size, BackendPtr inner, int64_t chunk_bytes = int64_t{4} << 20);
  ~StagedBackend() override;

  const std::string getBackendName() const override { return "staged"; }
  const BackendPtr& inner() const { return inner_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  void abort() override;
  void shutdown() override;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 private:
  using Move = std::function<WorkPtr(c10d::Backend& inner, Tensors& inputs, Tensors& outputs)>;
  using MoveInPlace = std::function<WorkPtr(c10d::Backend& inner, Tensors& chunk)>;
  /// What an operation copies out, what it copies in, and what moves the one to the other.
  struct Steps {
    Tensors inputs, outputs;
    Move move;
  };
  /// A thread that does operations one after the other; made by the first.
  using Line = std::shared_ptr<c10::ThreadPool>;

  void or_abort(const std::function<void()>& stage);
  c10::ThreadPool& line_of(c10d::OpType direction, int peer);
  c10::ThreadPool& collectives() { return line_of(c10d::OpType::UNKNOWN, rank_); }
  WorkPtr run(c10::ThreadPool& line, c10d::OpType type, Steps steps);
  WorkPtr run_in_chunks(c10d::OpType type, const at::Tensor& tensor, bool reads, bool writes,
                        MoveInPlace move);

  BackendPtr inner_;
  int64_t chunk_bytes_;
  std::mutex mutex_;                                    ///< of the lines' making
  std::map<std::pair<c10d::OpType, int>, Line> lines_;  ///< for messages by direction and rank
};

}  // namespace oslo
