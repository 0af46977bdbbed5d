#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "mpu/ledger.h"
#include "mpu/transport/transport.h"

namespace oslo {

/// Where a rank meets the others: the store, and the network device that its groups share.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  Transport transport = Transport::automatic;
  std::string host;      ///< ranks with the same one can share memory; this machine's when empty
  bool loopback = true;  ///< all ranks on this host
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  std::shared_ptr<void> device;  ///< Gloo's device; made by the first group, shared by the rest
};

/// LibTorch's process group, with the ledger of what moves over it: whoever is handed the group
/// (DistributedDataParallel) counts in the same book. It also says which ranks it joins.
class CountedProcessGroup final : public c10d::ProcessGroup {
 public:
  CountedProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> ranks)
      : c10d::ProcessGroup(std::move(store), rank, static_cast<int>(ranks.size())),
        ranks_(std::move(ranks)) {}
  const std::shared_ptr<Ledger>& ledger() const { return ledger_; }
  /// The members' ranks in the world, in the group's order.
  const std::vector<int>& ranks() const { return ranks_; }

  /// LibTorch's keeps its tensor in a static variable, which ranks that are threads of one process
  /// would write at the same time.
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options = {}) override;

 private:
  std::vector<int> ranks_;
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
