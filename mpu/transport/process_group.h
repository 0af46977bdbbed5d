#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "mpu/ledger.h"
#include "mpu/time_limit.h"
#include "mpu/transport/transport.h"

namespace oslo {

/// Where a rank meets the others: the store, and the network device that its groups share.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  Transport transport = Transport::automatic;
  std::string host;      ///< ranks with the same one can share memory; this machine's when empty
  bool loopback = true;  ///< all ranks on this host
  std::chrono::milliseconds timeout = kDefaultTimeout;
  std::shared_ptr<void> device;  ///< Gloo's device; made by the first group, shared by the rest
};

/// LibTorch's process group, with the ledger of what moves over it: whoever is handed the group
/// (DistributedDataParallel) counts in the same book. It also says which ranks it joins.
class CountedProcessGroup final : public c10d::ProcessGroup {
 public:
  CountedProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> ranks,
                      std::chrono::milliseconds timeout)
      : c10d::ProcessGroup(std::move(store), rank, static_cast<int>(ranks.size())),
        ranks_(std::move(ranks)),
        timeout_(timeout) {}
  const std::shared_ptr<Ledger>& ledger() const { return ledger_; }
  /// The members' ranks in the world, in the group's order.
  const std::vector<int>& ranks() const { return ranks_; }
  /// How long an operation may wait for other ranks.
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// What carries messages of CUDA tensors from rank `from` to rank `to`. NCCL's sends wait on the
  /// device for their receives: the two directions have a communicator each, so that two ranks
  /// that both send first do not wait for each other.
  c10::intrusive_ptr<c10d::Backend> device_messages(int from, int to);
  void set_downward_messages(std::function<c10::intrusive_ptr<c10d::Backend>()> make) {
    make_downward_ = std::move(make);
  }

  /// LibTorch's keeps its tensor in a static variable, which ranks that are threads of one process
  /// would write at the same time.
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options = {}) override;

 private:
  std::vector<int> ranks_;
  std::chrono::milliseconds timeout_;
  std::function<c10::intrusive_ptr<c10d::Backend>()> make_downward_;
  c10::intrusive_ptr<c10d::Backend> downward_;  ///< made by the first message
  std::mutex mutex_;
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
};

/// Makes the process group `name` of `ranks` of the world, of which this process is number `rank`,
/// over `wanted`; if that is automatic, over what OSLO_BACKEND says, as `parse_transport` reads it.
/// Collective over the members (except in fake worlds): they must want the same, and compare their
/// hosts. A group of one rank reaches nobody.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Rendezvous& rendezvous,
                                                          const std::string& name, int rank,
                                                          std::vector<int> ranks,
                                                          Transport wanted = Transport::automatic);

}  // namespace oslo
