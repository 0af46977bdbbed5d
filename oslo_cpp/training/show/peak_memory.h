#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace oslo {

/// The most bytes yet: of a GPU, those that LibTorch's allocator gave out there; of the CPU, those
/// of this process that were resident. 0 where nobody knows.
int64_t peak_memory(c10::Device device);

}  // namespace oslo
