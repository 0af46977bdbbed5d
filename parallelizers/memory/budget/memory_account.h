#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace oslo {

/// What one rank holds of its device's memory, in bytes that LibTorch's allocator has handed out.
///
/// On a CPU LibTorch counts nothing: the first account puts a counting allocator in front of the
/// process's (`c10::SetCPUAllocator`), which stays until the process ends. Memory counts for the
/// account of the thread that asked for it, whichever thread gives it back; threads without an
/// account (the workers of a parallel kernel) pass through. Cost: one entry of a table for each
/// block of a counted thread, some 0.1 us. Other devices count by themselves.
///
/// On any threads.
class MemoryAccount {
 public:
  /// That of this thread's rank: made by the first call of the thread.
  static std::shared_ptr<MemoryAccount> of_this_thread(c10::Device device);
  virtual ~MemoryAccount() = default;

  /// This thread works for the rank from now on, if it has no account yet.
  static void join(const std::shared_ptr<MemoryAccount>& account);

  virtual int64_t held() const = 0;
  /// The most that was held since the last call.
  virtual int64_t take_peak() = 0;
  /// Whether `held` counts this memory: what was handed out before the account was made is not.
  virtual bool counts(const c10::Storage& storage) const = 0;
};

}  // namespace oslo
