#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "mpu/transport/shared_memory/segment/segment.h"

namespace oslo::shared_memory {

/// What the members of a group have to agree on before they share memory.
struct Meeting {
  c10d::Store& store;  ///< keys below "shared_memory/" are used
  std::string group;   ///< for errors
  int rank;
  int size;
  std::string host;  ///< see host_identity(): members with another one are refused
  std::chrono::milliseconds timeout;
  std::vector<uint64_t> world_ranks = {};  ///< by group rank, for errors; may be empty

  uint64_t in_world(int rank) const { return world_ranks.empty() ? rank : world_ranks[rank]; }
};

/// One segment of `bytes` for all members, mapped by each. Collective over them: all get it, or all
/// throw the same reason. `prepare` runs on each member before the others may rely on it (rank 0
/// first, whose memory is all zeros).
std::shared_ptr<Segment> share_segment(const Meeting& meeting, size_t bytes,
                                       const std::function<void(Segment&)>& prepare);

}  // namespace oslo::shared_memory
