#pragma once

#include <memory>
#include <utility>

#include "parallelizers/data/sharded/host/host_ranks.h"

namespace oslo {

/// When ranks of a host may read the weights that they share, and when each may write its parts of
/// them (a readers-writer lock over rounds of writes, without a rendezvous for readers).
///
/// Each rank counts its writes: operators that write one or more of the model's parts. Ranks run
/// the same steps, so what one rank has written by its n-th write the others have written when
/// their n-th is done. A rank that reads waits until the others have done as many writes as it has
/// itself, and reads that until it begins to write the next time. A write waits for whoever reads:
/// until that rank begins the same write. So nobody reads half a step, and a rank that computes
/// alone between two steps holds the others only where they would write what it reads.
///
/// Where a rank reads what another one has written on already, which would take ranks that write
/// different numbers of times, that is a `PeerError`. One thread at a time.
class WriteTurns {
 public:
  explicit WriteTurns(std::shared_ptr<HostRanks> ranks) : ranks_(std::move(ranks)) {}

  /// This rank is about to write, in as many scopes as there are at a time; the outermost counts.
  /// Returns when nobody reads what will be written.
  void begin_write();
  void end_write() noexcept;

  /// This rank is about to read all weights. Returns when they are there; at once where it has not
  /// written since it last did.
  void read();

 private:
  const std::shared_ptr<HostRanks> ranks_;
  int depth_ = 0;
};

}  // namespace oslo
