#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <mutex>

namespace oslo::test {

/// Threads share the default generator: whoever draws holds this.
inline std::mutex& random_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// What `make` draws from this seed, with the generator to itself. Nothing in `make` may
/// communicate.
template <typename Make>
auto make_seeded(uint64_t seed, const Make& make) {
  const std::lock_guard<std::mutex> lock(random_mutex());
  at::manual_seed(seed);
  return make();
}

}  // namespace oslo::test
