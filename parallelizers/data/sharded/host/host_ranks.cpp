#include "parallelizers/data/sharded/host/host_ranks.h"

#include <unistd.h>

#include <exception>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/time_limit.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/transport/presence/host_identity.h"
#include "mpu/transport/presence/presence.h"
#include "mpu/transport/shared_memory/backend.h"
#include "mpu/transport/shared_memory/segment/meeting.h"
#include "parallelizers/data/sharded/host/pages.h"

namespace oslo {
namespace {

using shared_memory::Segment;

const CountedProcessGroup* counted(Group& group) {
  return dynamic_cast<const CountedProcessGroup*>(group.process_group().get());
}

/// As in the transport: with more ranks than cores who waits awake keeps others from arriving.
shared_memory::Patience patience_of(int ranks) {
  shared_memory::Patience patience;
  if (ranks > ::sysconf(_SC_NPROCESSORS_ONLN)) {
    patience.spins = 0;
  } else {
    patience.yields = 4000;
  }
  return patience;
}

std::shared_ptr<Segment> share(Group& group, std::chrono::milliseconds timeout, size_t words,
                               size_t bytes, size_t committed) {
  const auto store = group.process_group()->getStore();
  const int64_t number = store->add(c10::str("host_weights/made/", group.rank()), 1);
  c10d::PrefixStore apart(c10::str("host_weights/", number), store);
  shared_memory::Meeting meeting{apart,
                                 group.name(),
                                 group.rank(),
                                 group.size(),
                                 shared_memory::host_identity(),
                                 timeout,
                                 {group.ranks().begin(), group.ranks().end()}};
  return shared_memory::share_segment(meeting, words + bytes, [&](Segment& memory) {
    if (group.rank() == 0) memory.commit(0, words + committed);
    auto* const all = reinterpret_cast<HostWord*>(memory.data());
    all[group.rank()].membership.process = shared_memory::ProcessId::self();
  });
}

}  // namespace

bool HostRanks::can_share(Group& group) {
  const auto* const own = counted(group);
  if (own == nullptr || group.size() == 1) return false;
  return dynamic_cast<SharedMemoryBackend*>(group.process_group()->getBackend(c10::kCPU).get()) !=
         nullptr;
}

HostRanks::HostRanks(std::shared_ptr<Group> group, size_t bytes, size_t committed)
    : group_(std::move(group)),
      timeout_(counted(*group_)->timeout()),
      words_(whole_pages(static_cast<size_t>(group_->size()) * sizeof(HostWord))),
      segment_(share(*group_, timeout_, words_, whole_pages(bytes), committed)),
      patience_(patience_of(group_->size())) {}

HostRanks::~HostRanks() {
  const auto& presence = counted(*group_)->presence();
  // Before they see it leave, as the group does before its connections close.
  if (presence && std::uncaught_exceptions() > 0) {
    presence->tell_that_this_rank("has thrown an exception");
  }
  own().membership.left.store(1, std::memory_order_seq_cst);
  tell();
}

HostWord& HostRanks::word(int rank) const {
  return reinterpret_cast<HostWord*>(segment_->data())[rank];
}

std::string HostRanks::name_of(int rank) const {
  return c10::str("rank ", group_->ranks()[rank]);
}

void HostRanks::tell() const {
  for (int other = 0; other < size(); ++other) {
    if (other != rank()) shared_memory::add_one(word(other).bell);
  }
}

void HostRanks::fail_of(const std::string& what, const std::string& seen) const {
  const auto& presence = counted(*group_)->presence();
  const std::string cause = presence ? presence->cause(/*patient=*/false) : "";
  fail_as(ErrorKind::peer, what, cause.empty() ? seen : "; " + cause);
}

void HostRanks::await_others(const std::function<bool(int)>& said, const char* awaited) const {
  for (int other = 0; other < size(); ++other) {
    if (other != rank() && !said(other)) await(other, said, awaited);
  }
}

void HostRanks::await(int other, const std::function<bool(int)>& said, const char* awaited) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  const shared_memory::Membership& membership = word(other).membership;
  const shared_memory::ProcessId self = own().membership.process;
  const auto waited = [&] {
    return c10::str("weights that the ranks of group ", group_->name(),
                    " share on this host: ", name_of(rank()), " waited for ", name_of(other),
                    " to ", awaited);
  };
  shared_memory::await(
      own().bell, patience_, [&](uint32_t) { return said(other); },
      [&](bool slept) {
        const bool left = membership.left.load(std::memory_order_seq_cst) != 0;
        const bool ended = slept && !(membership.process == self) && !membership.process.alive();
        if (said(other)) return;  // before it went
        if (left) fail_of(waited() + ", which has left");
        if (ended) {
          fail_of(waited(),
                  c10::str(", which (process ", membership.process.number, ") has ended"));
        }
        if (std::chrono::steady_clock::now() < deadline) return;
        fail_of(c10::str(waited(), ", which it did not within ", to_text(timeout_), " (",
                         kTimeLimitHint, ")"));
      });
}

}  // namespace oslo
