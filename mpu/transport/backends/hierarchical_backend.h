#pragma once

#include <c10/core/thread_pool.h>

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace oslo {

/// Collectives between ranks on several hosts, some of which share one: shared memory inside a
/// host, the network between one leader of each host (the two-level scheme of MPI libraries and of
/// Horovod's hierarchical all-reduce). A value crosses the network once a host, not once a rank.
///
/// All-reduce, broadcast, all-gather and barrier are done so, one after the other, in the order of
/// the calls, on a thread of the backend's; of the dtypes that Gloo takes. The operations further
/// down go over `network`, the group that holds all ranks; what is not here is not supported, which
/// c10d says by name. When a step fails, the ranks of this host and the other leaders hear of it,
/// and every later operation of the group fails.
class HierarchicalBackend final : public c10d::Backend {
 public:
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

  struct Levels {
    BackendPtr inside;         ///< the ranks of this host; a SharedMemoryBackend
    BackendPtr leaders;        ///< the first rank of each host; null on the others
    BackendPtr network;        ///< all ranks
    std::vector<int> host_of;  ///< by rank, from 0, in order of each host's first rank
  };

  HierarchicalBackend(int rank, int size, Levels levels);
  ~HierarchicalBackend() override;

  const std::string getBackendName() const override { return "hierarchical"; }
  void abort() override;
  void shutdown() override;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  /// How many bytes an all-reduce of `bytes` brings to this rank: the host's, the other hosts' to
  /// its leader, the result from the leader.
  int64_t all_reduce_brings(int64_t bytes) const;

  // Over the network alone.
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_rows,
                                               std::vector<int64_t>& input_rows,
                                               const c10d::AllToAllOptions& options) override;

  // Inside a host by shared memory, else over the network.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int rank, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int rank, int tag) override;

 private:
  c10::intrusive_ptr<c10d::Work> run(std::vector<at::Tensor> outputs, std::function<void()> steps);
  void fail(const std::string& reason);
  /// The rank's place among those of its host.
  int inside_rank(int rank) const;
  void broadcast_now(const at::Tensor& tensor, int root, std::chrono::milliseconds timeout) const;

  Levels levels_;
  int host_ = 0;
  std::vector<std::vector<int>> ranks_of_;  ///< by host
  std::string failure_;                     ///< what ended the group; for the thread only
  std::shared_ptr<c10::ThreadPool> thread_ = std::make_shared<c10::ThreadPool>(1);
};

}  // namespace oslo
