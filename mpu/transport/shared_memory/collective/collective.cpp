#include "mpu/transport/shared_memory/collective/collective.h"

#include <algorithm>
#include <cstring>

#include "mpu/base/error.h"

namespace oslo::shared_memory {

void Collective::begin(Member& member, std::chrono::milliseconds timeout) {
  member.begin_operation(heading_, timeout);
  put(member, 0);
  member.publish();
}

void Collective::finish(Member& member) {
  member.await_all();
  uint32_t rounds = heading_.rounds;
  for (int rank = 0; rank < member.size(); ++rank) {
    if (rank == member.rank()) continue;
    const Heading& theirs = member.heading_of(rank);
    if (!agrees(theirs, rank)) {
      member.fail_group(
          c10::str("ranks of a group did different things: ", member.name_of_rank(member.rank()),
                   " did ", member.describe(heading_), ", and ", member.name_of_rank(rank), " did ",
                   member.describe(theirs)));
    }
    rounds = std::max(rounds, theirs.rounds);
  }
  take(member, 0);
  for (uint32_t round = 1; round < rounds; ++round) {
    member.next_round();
    put(member, round);
    member.publish();
    member.await_all();
    take(member, round);
  }
  member.next_round();
  for (const Buffer& buffer : written_) buffer.write_back();
}

bool Collective::same(const Heading& theirs, bool bytes_too) const {
  return theirs.kind == heading_.kind && theirs.sequence == heading_.sequence &&
         theirs.type == heading_.type && theirs.reduction == heading_.reduction &&
         theirs.root == heading_.root && theirs.detail == heading_.detail &&
         (!bytes_too || theirs.bytes == heading_.bytes);
}

uint32_t rounds_for(size_t bytes, size_t step) {
  return static_cast<uint32_t>(std::max<size_t>(1, (bytes + step - 1) / step));
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace oslo::shared_memory
