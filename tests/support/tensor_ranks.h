#pragma once

#include <functional>

#include "mpu/grid/mpu.h"

namespace oslo::test {

/// `body` on each of `size` tensor-parallel ranks, a thread a rank.
inline void on_ranks(int size, const std::function<void(const MPU&)>& body,
                     RandomMode mode = RandomMode::like_one_device) {
  run_as_threads(size, [&](World world) {
    body(MPU(world, MpuOptions().tensor_parallel_size(size).random_mode(mode)));
  });
}

}  // namespace oslo::test
