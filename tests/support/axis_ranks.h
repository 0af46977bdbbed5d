#pragma once

#include <ATen/Parallel.h>

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "mpu/grid/mpu.h"

namespace oslo::test {

/// `body` on each rank of a grid of these axes, a thread a rank.
inline void on_axes(const std::vector<Axis>& axes, const std::function<void(const MPU&)>& body,
                    std::optional<std::chrono::seconds> timeout = {}) {
  int ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  const auto rank = [&](const World& world) {
    at::set_num_threads(1);
    body(MPU(world, MpuOptions().axes(axes)));
  };
  timeout ? run_as_threads(ranks, rank, *timeout) : run_as_threads(ranks, rank);
}

}  // namespace oslo::test
