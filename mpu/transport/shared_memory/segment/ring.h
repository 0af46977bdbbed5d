#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mpu/transport/shared_memory/segment/shared_state.h"

namespace oslo::shared_memory {

/// What stands before each message in a channel; a line, so that it is never split at the ring's
/// end.
struct alignas(64) Envelope {
  uint64_t bytes = 0;
  int32_t tag = 0;
  int8_t type = 0;  ///< c10::ScalarType
};
static_assert(sizeof(Envelope) == 64);

/// One side's view of a channel: the bytes between `consumed` and `produced` are in the ring. What
/// is written or read takes effect for the other side at `publish`.
class Ring {
 public:
  Ring(Channel& channel, std::byte* data, size_t capacity)
      : channel_(channel), data_(data), capacity_(capacity) {}

  // --- the sender's ---
  size_t room() const {
    return capacity_ - (channel_.produced.load(std::memory_order_relaxed) -
                        channel_.consumed.load(std::memory_order_acquire));
  }
  /// Writes `bytes` (at most `room()`), and counts whole lines.
  void write(const void* from, size_t bytes) {
    const uint64_t at = channel_.produced.load(std::memory_order_relaxed);
    const size_t begin = at % capacity_;
    const size_t first = std::min(bytes, capacity_ - begin);
    if (first != 0) std::memcpy(data_ + begin, from, first);
    if (bytes > first) {
      std::memcpy(data_, static_cast<const std::byte*>(from) + first, bytes - first);
    }
    channel_.produced.store(at + whole_lines(bytes), std::memory_order_release);
  }

  // --- the receiver's ---
  size_t available() const {
    return channel_.produced.load(std::memory_order_acquire) -
           channel_.consumed.load(std::memory_order_relaxed);
  }
  void read(void* to, size_t bytes) {
    const uint64_t at = channel_.consumed.load(std::memory_order_relaxed);
    const size_t begin = at % capacity_;
    const size_t first = std::min(bytes, capacity_ - begin);
    if (first != 0) std::memcpy(to, data_ + begin, first);
    if (bytes > first) std::memcpy(static_cast<std::byte*>(to) + first, data_, bytes - first);
    channel_.consumed.store(at + whole_lines(bytes), std::memory_order_release);
  }

 private:
  static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

  Channel& channel_;
  std::byte* data_;
  size_t capacity_;
};

}  // namespace oslo::shared_memory
