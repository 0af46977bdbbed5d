#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "mpu/transport/presence/host_identity.h"
#include "mpu/transport/shared_memory/segment/segment.h"
#include "mpu/transport/shared_memory/segment/signals.h"

namespace oslo::shared_memory {

/// A collective's data moves in rounds; each rank has a slot for each of three in a row. Two are
/// being written and read, and the third holds what a slower rank may still be reading.
constexpr int kSlots = 3;

enum class Kind : uint8_t {
  none,
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  gather,
  scatter,
  broadcast,
  all_to_all,
  barrier,
};

/// As LibTorch's process groups spell it: "all_reduce".
const char* name_of(Kind kind);

/// What a rank says about the operation that it takes part in. Ranks that disagree all refuse.
struct Heading {
  uint64_t sequence = 0;  ///< the group's how many-th operation, from 1
  uint64_t bytes = 0;     ///< of this rank's contribution
  uint64_t detail = 0;    ///< a hash of the sizes of the parts, where there are some
  uint32_t rounds = 1;    ///< that this rank needs; the longest counts
  int32_t root = -1;
  Kind kind = Kind::none;
  int8_t type = 0;        ///< c10::ScalarType
  int8_t reduction = -1;  ///< c10d::ReduceOp::RedOpType
};

/// Of a processor's cache, in bytes: what two ranks write at the same time lies on different ones.
constexpr size_t kLine = 64;

/// One rank's word to the others on one round; a cache line of its own.
struct alignas(kLine) Post {
  Signal round;
  Heading heading;
};
static_assert(sizeof(Post) == kLine);

struct alignas(kLine) Membership {
  ProcessId process;
  std::atomic<uint32_t> left;  ///< nothing more comes from this rank
};

/// Rings when something has changed for this rank's sends and receives.
struct alignas(kLine) Bell {
  Signal rung;
};

struct MemberState {
  Membership membership;
  Bell bell;
  std::array<Post, kSlots> posts;
};

/// The group's first failure: every rank ends with it.
struct Failure {
  enum State : uint32_t { none, being_written, written };
  std::atomic<uint32_t> state;
  std::array<char, 2044> reason;
};

/// One direction between two ranks: bytes in a ring. The sender writes at `produced`, the receiver
/// reads at `consumed`; both only grow.
struct Channel {
  alignas(kLine) std::atomic<uint64_t> produced;
  alignas(kLine) std::atomic<uint64_t> consumed;
};

/// Where everything lies in a group's segment.
struct SegmentLayout {
  size_t members, slots, channels, bytes;
  size_t chunk, ring;
  int size;

  SegmentLayout(int size, size_t chunk, size_t ring);

  Failure& failure(const Segment& segment) const;
  MemberState& member(const Segment& segment, int rank) const;
  std::byte* slot(const Segment& segment, int rank, int index) const {
    return segment.data() + slots + (static_cast<size_t>(rank) * kSlots + index) * chunk;
  }
  Channel& channel(const Segment& segment, int from, int to) const;
  std::byte* ring_of(const Segment& segment, int from, int to) const;

  /// Commits what collectives need; channels are committed when they are first used.
  void commit_collectives(const Segment& segment) const { segment.commit(0, channels); }
  void commit_channel(const Segment& segment, int from, int to) const;

 private:
  size_t channel_offset(int from, int to) const;
};

}  // namespace oslo::shared_memory
