#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "mpu/ledger.h"

namespace oslo {

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

  /// What carries messages of tensors on `device`, a GPU, from rank `from` to rank `to`, of which
  /// one is this. NCCL's sends wait on the device for their receives: the two directions have a
  /// communicator each, so that two ranks that both send first do not wait for each other.
  c10::intrusive_ptr<c10d::Backend> device_messages(int from, int to, c10::Device device);
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
  std::map<int, std::once_flag> met_;           ///< ranks with which there has been a message
  std::mutex mutex_;
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
};

}  // namespace oslo
