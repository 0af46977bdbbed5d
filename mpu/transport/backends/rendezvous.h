#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mpu/base/time_limit.h"
#include "mpu/transport/backends/transport.h"

namespace oslo {

class Presence;

/// Where a rank meets the others: the store, and the network device that its groups share.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  Transport transport = Transport::automatic;
  std::string host;      ///< ranks with the same one can share memory; this machine's when empty
  bool loopback = true;  ///< all ranks on this host
  std::chrono::milliseconds timeout = kDefaultTimeout;
  std::shared_ptr<Presence> presence;  ///< for errors; may be null
  std::shared_ptr<void> device;  ///< Gloo's device; made by the first group, shared by the rest
};

}  // namespace oslo
