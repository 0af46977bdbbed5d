#pragma once

#include <functional>
#include <vector>

#include "tests/support/placed_values.h"

namespace oslo {

/// `body` on 4 ranks, 2 tensor x 2 data, over each transport.
inline void on_data_and_tensor_ranks(const std::function<void(const MPU&)>& body) {
  for (const Transport transport : {Transport::shared_memory, Transport::gloo}) {
    run_as_threads(4, [&](World world) {
      body(MPU(world, MpuOptions().tensor_parallel_size(2).backend(transport)));
    });
  }
}

}  // namespace oslo
