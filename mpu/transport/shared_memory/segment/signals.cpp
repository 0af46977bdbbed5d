#include "mpu/transport/shared_memory/segment/signals.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace oslo::shared_memory {
namespace {

uint32_t* word(Signal& signal) {
  static_assert(sizeof(signal.value) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(&signal.value);
}

}  // namespace

void sleep_on(Signal& signal, uint32_t seen, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  timespec relative{};
  relative.tv_sec = seconds.count();
  relative.tv_nsec = (limit - seconds).count();
  signal.sleepers.fetch_add(1, std::memory_order_seq_cst);
  // The kernel compares the value again; not a private futex: sleepers are in other processes.
  if (signal.value.load(std::memory_order_seq_cst) == seen) {
    ::syscall(SYS_futex, word(signal), FUTEX_WAIT, seen, &relative, nullptr, 0);
  }
  signal.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void wake(Signal& signal) {
  ::syscall(SYS_futex, word(signal), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace oslo::shared_memory
