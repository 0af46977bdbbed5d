#pragma once

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/device.h"

// Two sides of one comparison, timed in short turns, so that what else the machine does hits both.
namespace bench {

/// Microseconds a call, until the device is done.
template <typename Action>
double timed(const torch::Device& device, int calls, const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) action();
  finish(device);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / calls;
}

inline double percentile(std::vector<double> values, double fraction) {
  const auto at = values.begin() + static_cast<int64_t>(fraction * (values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Turns of `calls` plain ones and as many of ours; who begins changes. Counters, in microseconds:
/// the medians of each side, `more`, the median of the differences, and `ratio`, that of ours over
/// plain; with "_p10" and "_p90" behind them the tenth and ninetieth percentile.
template <typename Plain, typename Ours>
void take_turns(benchmark::State& state, const torch::Device& device, int calls, const Plain& plain,
                const Ours& ours) {
  timed(device, calls, plain);
  timed(device, calls, ours);
  std::map<std::string, std::vector<double>> found;
  bool plain_first = true;
  for (auto _ : state) {
    const double before = plain_first ? timed(device, calls, plain) : 0;
    const double of_ours = timed(device, calls, ours);
    const double of_plain = plain_first ? before : timed(device, calls, plain);
    plain_first = !plain_first;
    found["plain"].push_back(of_plain);
    found["ours"].push_back(of_ours);
    found["more"].push_back(of_ours - of_plain);
    found["ratio"].push_back(of_ours / of_plain);
  }
  for (const auto& [name, values] : found) {
    state.counters[name] = percentile(values, 0.5);
    state.counters[name + "_p10"] = percentile(values, 0.1);
    state.counters[name + "_p90"] = percentile(values, 0.9);
  }
}

}  // namespace bench
