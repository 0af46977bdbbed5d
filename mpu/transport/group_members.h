#pragma once

#include <string>
#include <vector>

#include "mpu/transport/backends/transport.h"

namespace oslo {

/// What a member of a group wants, and where it is. Travels as text.
struct GroupMember {
  Transport wanted = Transport::automatic;
  std::string host;    ///< ranks with the same one share memory
  std::string device;  ///< the GPU that is current there, under a name of its own; empty: none

  std::string to_text() const;
  static GroupMember from_text(const std::string& text);
};

/// What carries CUDA tensors.
enum class DeviceCarrier {
  nothing,  ///< some member has no GPU, or members on several hosts share one
  nccl,     ///< each has a GPU of its own
  staged,   ///< some share one, on one host: by way of its memory
};

/// What a group's members make of each other. Travels as text.
struct MembersMet {
  std::vector<int> host_of;  ///< by rank, as numbers from 0 in order of first appearance
  DeviceCarrier device = DeviceCarrier::nothing;

  std::string to_text() const;
  /// Of `size` members. Throws where it is none of `to_text`'s.
  static MembersMet from_text(const std::string& text, int size);
};

/// Throws when the members want different transports, or NCCL where it cannot be. `ranks` are
/// theirs in the world, for errors.
MembersMet what_was_met(const std::string& group, const std::vector<GroupMember>& members,
                        const std::vector<int>& ranks);

}  // namespace oslo
