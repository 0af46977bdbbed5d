#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "mpu/group/group.h"
#include "mpu/transport/shared_memory/segment/segment.h"
#include "mpu/transport/shared_memory/segment/shared_state.h"
#include "mpu/transport/shared_memory/segment/signals.h"

namespace oslo {

/// What a rank says to the others of its host about weights that they share. All numbers only grow.
struct HostWord {
  shared_memory::Membership membership;
  alignas(shared_memory::kLine) shared_memory::Signal bell;   ///< rings when others said something
  alignas(shared_memory::kLine) std::atomic<uint64_t> begun;  ///< writes to weights (WriteTurns)
  std::atomic<uint64_t> done;
  std::atomic<uint64_t> together;  ///< the last write that all come to before it writes anything
  std::atomic<uint32_t> reads;     ///< it computes with what its last write left
  alignas(shared_memory::kLine) std::atomic<uint64_t> ended;  ///< backward passes (Deposits)
  std::atomic<uint64_t> thrown;  ///< the last one that threw, from 1; 0: none has
  std::atomic<uint64_t> taken;   ///< whose deposits it has taken its part of
};

/// Ranks of one host with memory that all of them map (memfd: it has no name, and goes with the
/// last of them, however that ends). The ranks are processes, or threads of one.
///
/// One thread at a time. What a rank waits for that does not come within the group's time limit, or
/// from a rank that has ended, is a `PeerError` that names it, and the rank whose failure came
/// first where that is known.
class HostRanks {
 public:
  /// Whether the members of `group` can share memory: their CPU tensors go over it. The same on
  /// all.
  static bool can_share(Group& group);

  /// `bytes` of zeros behind the ranks' words, of which the first `committed` are there at once.
  /// Collective over the group: all get it, or all throw the same.
  HostRanks(std::shared_ptr<Group> group, size_t bytes, size_t committed);
  ~HostRanks();
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  std::byte* data() const { return segment_->data() + words_; }
  size_t bytes() const { return segment_->bytes() - words_; }
  /// What lies at these offsets of `data()`; of no bytes there is nothing to do.
  void commit(size_t offset, size_t bytes) const {
    if (bytes > 0) segment_->commit(words_ + offset, bytes);
  }
  void release(size_t offset, size_t bytes) const {
    if (bytes > 0) segment_->release(words_ + offset, bytes);
  }

  HostWord& word(int rank) const;
  HostWord& own() const { return word(rank()); }
  /// "rank 3", by its number in the world.
  std::string name_of(int rank) const;

  /// Throws a `PeerError`: `what`, and behind it the rank whose failure came first, which may have
  /// taken along the one that this rank waited for; where nobody knows of any, `seen`.
  [[noreturn]] void fail_of(const std::string& what, const std::string& seen = "") const;

  /// Wakes the others: this rank has said something.
  void tell() const;
  /// Returns when `said` holds of every other rank. `awaited`: for the error, what it has not done.
  void await_others(const std::function<bool(int rank)>& said, const char* awaited) const;

 private:
  void await(int rank, const std::function<bool(int)>& said, const char* awaited) const;

  const std::shared_ptr<Group> group_;
  std::chrono::milliseconds timeout_;
  size_t words_;  ///< bytes of the ranks' words
  std::shared_ptr<shared_memory::Segment> segment_;
  shared_memory::Patience patience_;
};

}  // namespace oslo
