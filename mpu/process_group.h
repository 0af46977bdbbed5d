#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mpu/ledger.h"

namespace oslo {

/// What carries the collectives of a world's groups.
enum class Transport {
  network,  ///< Gloo for CPU tensors, NCCL for CUDA tensors (in a CUDA build)
  fake,     ///< nothing moves: shapes and counts only, for dry runs of any mesh on one rank
};

/// Where a rank meets the others: the store, and the network device that its groups share.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  Transport transport = Transport::network;
  bool loopback = true;  ///< all ranks on this host
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  std::shared_ptr<void> device;  ///< Gloo's device; made by the first group, shared by the rest
};

/// LibTorch's process group, with the ledger of what moves over it: whoever is handed the group
/// (DistributedDataParallel) counts in the same book.
class CountedProcessGroup final : public c10d::ProcessGroup {
 public:
  using c10d::ProcessGroup::ProcessGroup;
  const std::shared_ptr<Ledger>& ledger() const { return ledger_; }

 private:
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
};

/// Makes the process group `name` with this process as `rank` of `size`. Collective over the
/// members (except fake groups). A group of one rank reaches nobody.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Rendezvous& rendezvous,
                                                          const std::string& name, int rank,
                                                          int size);

}  // namespace oslo
