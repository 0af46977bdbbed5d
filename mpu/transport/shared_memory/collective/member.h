#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mpu/transport/shared_memory/segment/shared_state.h"

namespace oslo::shared_memory {

/// One rank's place in a group's memory. Collectives move their data in rounds, which all ranks go
/// through in step: put data into my slot, publish, wait until all have, take from their slots.
/// That a rank has published a round says that it is through with the one before, so nobody waits
/// twice. One thread at a time, except `abort` and `leave`.
class Member {
 public:
  struct Names {
    std::string group;
    std::vector<uint64_t> world_ranks;  ///< by group rank; may be empty
  };

  Member(std::shared_ptr<Segment> segment, const SegmentLayout& layout, int rank, Names names);

  /// What a member writes before others may rely on it; then `Member` can be made.
  static void join(Segment& segment, const SegmentLayout& layout, int rank);

  int rank() const { return rank_; }
  int size() const { return layout_.size; }
  const std::string& group() const { return names_.group; }
  size_t chunk() const { return layout_.chunk; }

  // --- one operation ---
  /// How long the operation that comes next may take, from when it first has to wait.
  void begin_operation(const Heading& heading, std::chrono::milliseconds timeout);
  void publish();
  /// Returns when every rank has published this round.
  void await_all();
  void next_round();
  /// What `rank` said when it published this round.
  const Heading& heading_of(int rank) const { return post(rank, slot_).heading; }

  /// Rank `rank`'s slot of this round, or of the round before.
  std::byte* slot(int rank) const { return layout_.slot(*segment_, rank, slot_); }
  std::byte* previous_slot(int rank) const {
    return layout_.slot(*segment_, rank, (slot_ + kSlots - 1) % kSlots);
  }

  /// Whether everyone has published this round already.
  bool all_here() const;

  // --- failures ---
  /// Throws the group's failure, if there is one.
  void check() const;
  /// Makes `reason` the group's failure unless it has one, and wakes everyone. Throws the failure.
  [[noreturn]] void fail_group(const std::string& reason);
  /// The same without throwing.
  void abort(const std::string& reason);
  /// Tells the others that nothing more comes from here.
  void leave();

  /// "all_reduce number 17 (sum of Float, 64 bytes) over group dp".
  std::string describe(const Heading& heading) const;
  /// By its number in the world, where that is known.
  std::string name_of_rank(int rank) const;

  // --- for sends and receives ---
  Signal& bell(int rank) const { return layout_.member(*segment_, rank).bell.rung; }
  Channel& channel(int from, int to) const { return layout_.channel(*segment_, from, to); }
  std::byte* ring(int from, int to) const { return layout_.ring_of(*segment_, from, to); }
  size_t ring_bytes() const { return layout_.ring; }
  void commit_channel(int from, int to) const { layout_.commit_channel(*segment_, from, to); }
  const Patience& patience() const { return patience_; }
  /// Why nothing more can come from `rank`, or empty.
  std::string why_gone(int rank) const;

 private:
  Post& post(int rank, int slot) const { return layout_.member(*segment_, rank).posts[slot]; }
  void await(int rank);
  void check_peers(bool slept);
  bool anyone_left() const;
  void wake_everyone() const;

  std::shared_ptr<Segment> segment_;
  const SegmentLayout layout_;
  const int rank_;
  const Names names_;
  const ProcessId process_;
  Patience patience_;
  Failure& failure_;
  uint32_t round_ = 0;  ///< wraps around; only equality is asked
  int slot_ = 0;
  Heading heading_;
  std::chrono::milliseconds timeout_{0};
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace oslo::shared_memory
