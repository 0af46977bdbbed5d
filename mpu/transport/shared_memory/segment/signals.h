#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace oslo::shared_memory {

/// A number in shared memory that one rank sets and others wait for. Whoever sleeps says so, so
/// that setting it costs no system call while nobody does.
struct Signal {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "signals cross processes");

/// Sleeps while `signal` is `seen` and nobody wakes it, at most for `limit`.
void sleep_on(Signal& signal, uint32_t seen, std::chrono::nanoseconds limit);

/// Wakes all who sleep on `signal`, whether or not its value has changed.
void wake(Signal& signal);

inline void set(Signal& signal, uint32_t value) {
  // Sequentially consistent, as is what sleepers do: either they see the value or we see them.
  signal.value.store(value, std::memory_order_seq_cst);
  if (signal.sleepers.load(std::memory_order_seq_cst) != 0) wake(signal);
}

inline void add_one(Signal& signal) {
  signal.value.fetch_add(1, std::memory_order_seq_cst);
  if (signal.sleepers.load(std::memory_order_seq_cst) != 0) wake(signal);
}

/// How long to wait awake: first spinning, then giving the core to others, then not at all.
struct Patience {
  int spins = 200;
  int yields = 200;
  /// A sleep's longest: how soon a rank that was killed is noticed.
  std::chrono::milliseconds slice{50};
};

/// Returns when `arrived(value)`. `check(slept)` throws what ends the waiting; it is called before
/// the first sleep (not `slept`: be quick) and after each.
template <typename Arrived, typename Check>
void await(Signal& signal, const Patience& patience, const Arrived& arrived, const Check& check) {
  const auto here = [&] { return arrived(signal.value.load(std::memory_order_acquire)); };
  for (int i = 0; i < patience.spins; ++i) {
    if (here()) return;
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
  // Beside programs that compute, each yield lasts for their time slices: 200 of them are seconds.
  const auto enough = std::chrono::steady_clock::now() + patience.slice;
  for (int i = 0; i < patience.yields && std::chrono::steady_clock::now() < enough; ++i) {
    if (here()) return;
    ::sched_yield();
  }
  for (bool slept = false; !here(); slept = true) {
    check(slept);
    const uint32_t seen = signal.value.load(std::memory_order_acquire);
    if (!arrived(seen)) sleep_on(signal, seen, patience.slice);
  }
}

}  // namespace oslo::shared_memory
