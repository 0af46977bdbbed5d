#include "mpu/transport/shared_memory/collective/member.h"

#include <c10/core/ScalarType.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/collective/reduce_kernels.h"

namespace oslo::shared_memory {
namespace {

/// With more ranks than cores, whoever waits awake keeps another rank from arriving. With a core
/// each, staying awake for a millisecond of yields costs nobody anything, and a wake-up through the
/// kernel costs up to a tenth of one at every operation of a training step.
Patience patience_for(int ranks) {
  Patience patience;
  if (ranks > ::sysconf(_SC_NPROCESSORS_ONLN)) {
    patience.spins = 0;
  } else {
    patience.yields = 4000;
  }
  return patience;
}

}  // namespace

void Member::join(Segment& segment, const SegmentLayout& layout, int rank) {
  if (rank == 0) layout.commit_collectives(segment);
  layout.member(segment, rank).membership.process = ProcessId::self();
}

Member::Member(std::shared_ptr<Segment> segment, const SegmentLayout& layout, int rank, Names names)
    : segment_(std::move(segment)),
      layout_(layout),
      rank_(rank),
      names_(std::move(names)),
      process_(ProcessId::self()),
      patience_(patience_for(layout.size)),
      failure_(layout.failure(*segment_)) {}

void Member::begin_operation(const Heading& heading, std::chrono::milliseconds timeout) {
  // Of a failed group nothing may be written any more: another rank may still be reading.
  check();
  heading_ = heading;
  timeout_ = timeout;
  deadline_.reset();
}

void Member::publish() {
  check();
  Post& mine = post(rank_, slot_);
  mine.heading = heading_;
  set(mine.round, round_ + 1);
}

void Member::next_round() {
  ++round_;
  slot_ = (slot_ + 1) % kSlots;
}

bool Member::all_here() const {
  for (int rank = 0; rank < size(); ++rank) {
    const Signal& round = post(rank, slot_).round;
    if (round.value.load(std::memory_order_acquire) != round_ + 1) return false;
  }
  return true;
}

void Member::await_all() {
  for (int rank = 0; rank < size(); ++rank) {
    if (post(rank, slot_).round.value.load(std::memory_order_acquire) != round_ + 1) await(rank);
  }
}

void Member::await(int rank) {
  const uint32_t awaited = round_ + 1;
  shared_memory::await(
      post(rank, slot_).round, patience_, [&](uint32_t round) { return round == awaited; },
      [this](bool slept) { check_peers(slept); });
}

void Member::check_peers(bool slept) {
  check();
  const auto now = std::chrono::steady_clock::now();
  if (!deadline_) deadline_ = now + timeout_;
  if (!slept && !anyone_left()) return;
  std::string late;
  for (int rank = 0; rank < size(); ++rank) {
    const auto published = [&] {
      return post(rank, slot_).round.value.load(std::memory_order_acquire) == round_ + 1;
    };
    if (published()) continue;
    const std::string reason = rank == rank_ ? "" : why_gone(rank);
    if (published()) continue;  // before it went
    if (!reason.empty()) fail_group(c10::str(describe(heading_), ": ", reason));
    late += c10::str(late.empty() ? "" : ", ", name_of_rank(rank));
  }
  if (now < *deadline_ || late.empty()) return;
  fail_group(c10::str(describe(heading_), ": ", name_of_rank(rank_), " waited ", timeout_.count(),
                      " ms for ", late));
}

bool Member::anyone_left() const {
  for (int rank = 0; rank < size(); ++rank) {
    const Membership& membership = layout_.member(*segment_, rank).membership;
    if (membership.left.load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

std::string Member::why_gone(int rank) const {
  const Membership& membership = layout_.member(*segment_, rank).membership;
  if (membership.left.load(std::memory_order_acquire) != 0) {
    return name_of_rank(rank) + " has left the group";
  }
  if (membership.process == process_ || membership.process.alive()) return "";
  return c10::str(name_of_rank(rank), " (process ", membership.process.number, ") has ended");
}

void Member::check() const {
  if (failure_.state.load(std::memory_order_acquire) == Failure::none) [[likely]]
    return;
  // Whoever is writing the reason needs a moment, unless it was killed just there.
  for (int i = 0; i < 1000 && failure_.state.load(std::memory_order_acquire) != Failure::written;
       ++i) {
    ::usleep(100);
  }
  if (failure_.state.load(std::memory_order_acquire) != Failure::written) {
    fail_as(ErrorKind::peer, "group ", names_.group,
            " has failed, and the rank that found out has ended");
  }
  fail_as(ErrorKind::peer, failure_.reason.data());
}

void Member::abort(const std::string& reason) {
  uint32_t expected = Failure::none;
  if (failure_.state.compare_exchange_strong(expected, Failure::being_written)) {
    const size_t length = std::min(reason.size(), failure_.reason.size() - 1);
    std::memcpy(failure_.reason.data(), reason.data(), length);
    failure_.reason[length] = '\0';
    failure_.state.store(Failure::written, std::memory_order_seq_cst);
  }
  wake_everyone();
}

void Member::fail_group(const std::string& reason) {
  abort(reason);
  check();
  fail_as(ErrorKind::peer, reason);
}

void Member::leave() {
  layout_.member(*segment_, rank_).membership.left.store(1, std::memory_order_seq_cst);
  wake_everyone();
}

void Member::wake_everyone() const {
  for (int rank = 0; rank < size(); ++rank) {
    for (Post& post : layout_.member(*segment_, rank).posts) wake(post.round);
    add_one(bell(rank));
  }
}

std::string Member::name_of_rank(int rank) const {
  const bool known = static_cast<size_t>(rank) < names_.world_ranks.size();
  return c10::str("rank ", known ? names_.world_ranks[rank] : static_cast<uint64_t>(rank));
}

std::string Member::describe(const Heading& heading) const {
  std::string what;
  if (heading.kind != Kind::barrier) {
    what = c10::str(" (", heading.bytes, " bytes of ", static_cast<c10::ScalarType>(heading.type));
    if (heading.reduction >= 0) {
      const auto op = static_cast<c10d::ReduceOp::RedOpType>(heading.reduction);
      what += c10::str(", ", shared_memory::name_of(op));
    }
    if (heading.root >= 0) what += c10::str(", root ", name_of_rank(heading.root));
    what += ")";
  }
  return c10::str(name_of(heading.kind), " number ", heading.sequence, what, " over group ",
                  names_.group);
}

}  // namespace oslo::shared_memory
