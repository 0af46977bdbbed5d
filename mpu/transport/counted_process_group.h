#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "mpu/base/ledger.h"
#include "mpu/transport/device_messages.h"

namespace oslo {

class Group;
class Presence;

/// LibTorch's process group, with the ledger of what moves over it: whoever is handed the group
/// (DistributedDataParallel) counts in the same book. It also says which ranks it joins.
class CountedProcessGroup final : public c10d::ProcessGroup {
 public:
  CountedProcessGroup(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> ranks,
                      std::chrono::milliseconds timeout,
                      std::shared_ptr<Presence> presence = nullptr)
      : c10d::ProcessGroup(std::move(store), rank, static_cast<int>(ranks.size())),
        ranks_(std::move(ranks)),
        timeout_(timeout),
        presence_(std::move(presence)) {}
  /// Tells the others where this rank is failing, before any connection closes.
  ~CountedProcessGroup() override;
  const std::shared_ptr<Ledger>& ledger() const { return ledger_; }
  /// The members' ranks in the world, in the group's order.
  const std::vector<int>& ranks() const { return ranks_; }
  /// How long an operation may wait for other ranks.
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// Which ranks of the world are there; may be null.
  const std::shared_ptr<Presence>& presence() const { return presence_; }

  /// What carries messages of tensors on devices; null where their backend does it.
  DeviceMessages* device_messages() const { return device_messages_.get(); }
  void set_device_messages(std::unique_ptr<DeviceMessages> messages) {
    device_messages_ = std::move(messages);
  }

  /// Why gradients must not be averaged over this group after one pass over a batch; empty: they
  /// may. A config can say that batches are divided.
  const std::string& undivided_refused() const { return undivided_refused_; }
  void refuse_undivided(std::string why) { undivided_refused_ = std::move(why); }

  /// The type that averages of wider gradients over this group travel in; unset: their own.
  std::optional<c10::ScalarType> gradients_travel_in() const { return gradients_travel_in_; }
  void let_gradients_travel_in(c10::ScalarType type) { gradients_travel_in_ = type; }

  /// The group that averages over this one go on over (mpu/grid/group_copies.h); mostly null.
  const std::shared_ptr<Group>& copies() const { return copies_; }
  void set_copies(std::shared_ptr<Group> copies) { copies_ = std::move(copies); }

  void abort() override;

  /// LibTorch's keeps its tensor in a static variable, which ranks that are threads of one process
  /// would write at the same time.
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options = {}) override;

 private:
  std::vector<int> ranks_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Presence> presence_;
  std::unique_ptr<DeviceMessages> device_messages_;
  std::string undivided_refused_;
  std::optional<c10::ScalarType> gradients_travel_in_;
  std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  std::shared_ptr<Group> copies_;
};

}  // namespace oslo
