#include "oslo_cpp/training/show/peak_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>

namespace oslo {

int64_t peak_memory(c10::Device device) {
  if (!device.is_cpu()) {
    auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    if (allocator == nullptr || !allocator->initialized()) return 0;
    return allocator->getDeviceStats(device.index()).allocated_bytes[0].peak;
  }
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace oslo
