#pragma once

#include <c10/core/ScalarType.h>

#include <array>

namespace oslo {

/// What LibTorch's own state of a thread (`at::ThreadLocalState`) leaves out of autocast's: the
/// types to cast to on the CPU and on CUDA.
class AutocastTypes {
 public:
  /// Those of this thread.
  AutocastTypes();
  /// Makes them this thread's.
  void set() const;

 private:
  std::array<c10::ScalarType, 2> types_;
};

/// While alive autocast remembers no casts. Its cache is one for the process: who empties it
/// empties that of other threads, which may be other ranks or micro-batches.
class NoCastCache {
 public:
  NoCastCache();
  ~NoCastCache();
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  const bool before_;
};

/// Whether this thread is within a guard that counts its nesting, as PyTorch's do.
bool is_within_autocast_guard();

}  // namespace oslo
