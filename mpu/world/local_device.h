#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

#include "mpu/world/world.h"

namespace oslo {

/// The device that this rank computes on, made the current one of the calling thread, so that what
/// it allocates from then on lies there: call it before the model is made. `name` is
///
/// - "cpu";
/// - "cuda": a GPU for each rank of a host, by the rank's number there (LOCAL_RANK). Fewer GPUs
/// than
///   ranks are an error. A launcher may show each rank one GPU of its own (CUDA_VISIBLE_DEVICES);
/// - "cuda:1": that one, for every rank of the world: several ranks share it, which is for
/// comparing
///   results, not for speed.
///
/// Every rank calls it: they compare what they see, and all return or all throw. The errors tell
/// apart a LibTorch for CPUs, a missing or too old driver, no GPU, and too few of them. Other
/// threads of this process keep their own current device, as CUDA has it.
c10::Device local_device(const World& world, std::string_view name = "cuda");

/// Bytes of `device` that tensors hold: what LibTorch's allocator has handed out there; on the CPU
/// what this process holds in memory at all.
int64_t memory_held(c10::Device device);

/// What a rank sees of its host's GPUs.
struct SeenDevices {
  int local_rank = 0;
  int local_size = 1;
  std::vector<std::string> devices;  ///< a name for each, by number, which no other one has
};

/// By rank, the number of the GPU of each. Throws where there are not enough.
std::vector<int> share_out_devices(const std::vector<SeenDevices>& ranks);

}  // namespace oslo
