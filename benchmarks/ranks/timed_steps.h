#pragma once

#include <chrono>
#include <vector>

namespace bench {

/// Milliseconds that each of `steps` calls of `step` takes; `ready` is called before each, untimed.
template <typename Ready, typename Step>
std::vector<double> timed_steps(int steps, const Ready& ready, const Step& step) {
  std::vector<double> milliseconds;
  for (int i = 0; i < steps; ++i) {
    ready();
    const auto start = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    milliseconds.push_back(taken.count());
  }
  return milliseconds;
}

}  // namespace bench
