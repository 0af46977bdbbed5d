#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "mpu/base/error.h"

namespace oslo {

/// What carries a group's collectives of CPU tensors. (Those of CUDA tensors go over NCCL, in a
/// CUDA build, whatever is chosen here but `fake`.)
enum class Transport {
  automatic,      ///< "auto": shared memory between ranks of one host, Gloo between hosts
  gloo,           ///< "gloo": TCP, also on one host
  shared_memory,  ///< "shm": shared memory; refused when the group's ranks are on several hosts
  nccl,           ///< "nccl": as automatic; refused where there is no NCCL
  fake,           ///< "fake": nothing moves. Shapes and counts only
};

inline constexpr std::array<std::pair<Transport, const char*>, 5> kTransportNames{{
    {Transport::automatic, "auto"},
    {Transport::gloo, "gloo"},
    {Transport::shared_memory, "shm"},
    {Transport::nccl, "nccl"},
    {Transport::fake, "fake"},
}};

inline std::string to_string(Transport transport) {
  for (const auto& [each, name] : kTransportNames) {
    if (each == transport) return name;
  }
  return "";
}

/// The inverse of `to_string`. Throws `Error` for any other text.
inline Transport parse_transport(std::string_view text) {
  for (const auto& [transport, name] : kTransportNames) {
    if (text == name) return transport;
  }
  fail("backend '", text, "' is not known: use 'auto', 'gloo', 'shm', 'nccl' or 'fake'");
}

}  // namespace oslo
