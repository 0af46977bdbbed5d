#pragma once

#include <functional>
#include <numeric>
#include <vector>

#include "mpu/group/group.h"
#include "mpu/world/world.h"

namespace oslo::test {

/// `body` on each of `size` ranks, a thread a rank, with a group of all of them over `transport`.
inline void on_transport(int size, Transport transport, const std::function<void(Group&)>& body,
                         std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
  run_as_threads(
      size,
      [&](World world) {
        std::vector<int> ranks(size);
        std::iota(ranks.begin(), ranks.end(), 0);
        body(*world.make_group("all", ranks, transport));
      },
      timeout);
}

}  // namespace oslo::test
