#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mpu/launch/launch_environment.h"

namespace oslo {

/// Whether all ranks of the job are on this host, by what the launcher says.
bool is_on_one_host(const LaunchEnvironment& launch);

/// The store over which the ranks of a launched job meet: rank 0 hosts it, unless the launcher
/// does, and every rank connects to it. Each call on it ends within the time limit (TimedStore).
///
/// Where all ranks are on this host it listens on the loopback alone. Elsewhere it listens on every
/// interface, as ranks may come by any. What strangers send there stops nobody: LibTorch's libuv
/// server waits for none of its clients, and has descriptors of its own, so that connections of
/// others take none from this process.
c10::intrusive_ptr<c10d::Store> join_job_store(const LaunchEnvironment& launch,
                                               std::chrono::milliseconds timeout);

}  // namespace oslo
