#include "mpu/transport/process_group_gloo.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace oslo {
namespace {

using Device = ::gloo::transport::Device;

std::shared_ptr<Device> make_device(bool loopback) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (loopback) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(Rendezvous& rendezvous,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size) {
  if (!rendezvous.device) rendezvous.device = make_device(rendezvous.loopback);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(std::static_pointer_cast<Device>(rendezvous.device));
  options->timeout = rendezvous.timeout;
  options->threads = 1;  // our collectives are few and ordered; more threads only compete for cores
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
}

}  // namespace oslo
