#include "mpu/world/local_device.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "mpu/base/error.h"
#include "mpu/transport/backends/cuda_support.h"
#include "mpu/world/agreement.h"

namespace oslo {
namespace {

c10::Device parse(std::string_view name) {
  const std::string text(name);
  try {
    const c10::Device device(text);
    if (device.is_cpu() || device.is_cuda()) return device;
  } catch (const std::exception&) {
    // Said below, for what is no device and for what is another one.
  }
  fail("device '", text, "' is not known: use 'cpu', 'cuda' (a GPU for each rank) or 'cuda:0'");
}

/// Throws why there is no GPU here.
void check_has_gpu(std::string_view name) {
  const CudaSupport* support = cuda_support();
  OSLO_CHECK(support != nullptr, "device '", name,
             "': this program was built for CPUs: configure oslo_cpp with -DOSLO_CUDA=ON and a "
             "LibTorch for CUDA (docs/gpu.md), or use the device 'cpu'");
  const std::string problem = support->why_no_device();
  OSLO_CHECK(problem.empty(), "device '", name, "': ", problem, " (docs/gpu.md)");
}

std::string text_of(const SeenDevices& seen) {
  return nlohmann::json{seen.local_rank, seen.local_size, seen.devices}.dump();
}

SeenDevices seen_of(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json[0], json[1], json[2].get<std::vector<std::string>>()};
}

SeenDevices look(const World& world, const CudaSupport& support) {
  SeenDevices seen{world.local_rank(), world.local_size(), {}};
  const int count = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
  for (int i = 0; i < count; ++i) seen.devices.push_back(support.device_identity(i));
  return seen;
}

}  // namespace

std::vector<int> share_out_devices(const std::vector<SeenDevices>& ranks) {
  std::vector<int> numbers;
  std::set<std::string> taken;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const SeenDevices& seen = ranks[rank];
    const auto count = static_cast<int>(seen.devices.size());
    OSLO_CHECK(count > 0, "rank ", rank, " sees no GPU (is CUDA_VISIBLE_DEVICES empty there?)");
    // A launcher that shows each rank one GPU has shared them out already.
    const int number = count == 1 ? 0 : seen.local_rank;
    const bool free = number < count && taken.insert(seen.devices[number]).second;
    OSLO_CHECK(free, "rank ", rank, " is number ", seen.local_rank, " of ", seen.local_size,
               " ranks of its host and sees ", count, count == 1 ? " GPU" : " GPUs",
               ", of which none is left for it; start a rank for each GPU, or have the ranks share "
               "one by naming it: "
               "'cuda:0' (for comparing results, not for speed)");
    numbers.push_back(number);
  }
  return numbers;
}

c10::Device local_device(const World& world, std::string_view name) {
  c10::Device device(c10::kCPU);
  const std::string topic = c10::str("the device '", name, "'");
  agree_on_success(world, topic, [&] {
    device = parse(name);
    if (device.is_cpu()) return;
    check_has_gpu(name);
    const int count = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
    OSLO_CHECK(!device.has_index() || device.index() < count, "device '", name, "': there are ",
               count, " GPUs here, numbered from 0");
  });
  if (device.is_cpu()) return device;
  if (world.plan_only()) device = c10::Device(c10::kCUDA, 0);  // the others are pretended
  if (!device.has_index()) {
    std::vector<SeenDevices> ranks;
    for (const auto& text : world.exchange(topic, text_of(look(world, *cuda_support())))) {
      ranks.push_back(seen_of(text));
    }
    const int number = share_out_devices(ranks)[world.rank()];
    device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number));
  }
  c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
  return device;
}

int64_t memory_held(c10::Device device) {
  if (!device.is_cpu()) {
    if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
    auto* const allocator = c10::getDeviceAllocator(device.type());
    if (!allocator->initialized()) return 0;  // it knows no device before the first tensor
    const auto stats = allocator->getDeviceStats(device.index());
    return stats.allocated_bytes[0].current;  // [0]: of large and small blocks together
  }
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace oslo
