#include "mpu/launch/job_store.h"

#include <algorithm>
#include <memory>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "mpu/launch/store_server.h"
#include "mpu/launch/timed_store.h"

namespace oslo {

bool is_on_one_host(const LaunchEnvironment& launch) {
  return launch.local_size == launch.size || is_loopback(launch.master_address);
}

c10::intrusive_ptr<c10d::Store> join_job_store(const LaunchEnvironment& launch,
                                               std::chrono::milliseconds timeout) {
  const bool hosted_here = !launch.store_is_hosted_elsewhere;
  const bool loopback = hosted_here && is_on_one_host(launch);
  const std::string address = loopback ? "127.0.0.1" : launch.master_address;
  std::shared_ptr<StoreServer> server;
  if (hosted_here && launch.rank == 0) {
    server = std::make_shared<StoreServer>(launch.master_port, loopback);
  }
  // The server ends behind the last connection of this process.
  const auto connect = [server, address, timeout, port = launch.master_port] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.waitWorkers = false;
    // LibTorch counts whole seconds here.
    options.timeout = std::max<std::chrono::milliseconds>(timeout, std::chrono::seconds(1));
    return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::TCPStore>(address, options));
  };
  const std::string host = hosted_here ? ", which rank 0 hosts," : ", which the launcher hosts,";
  return c10::make_intrusive<TimedStore>(
      connect, timeout, c10::str("the ranks' store at ", address, ":", launch.master_port, host));
}

}  // namespace oslo
