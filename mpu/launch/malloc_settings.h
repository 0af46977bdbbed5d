#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace oslo {

/// With these glibc's malloc keeps what a training step frees, for the next step to take again. By
/// itself it maps every large block anew and unmaps it when it is freed, and the system fills each
/// of its pages with zeros. In bytes. For ranks of `oslo run`, which sets the variables, and for
/// `keep_freed_memory`.
struct MallocSettings {
  static constexpr const char* kMmapVariable = "MALLOC_MMAP_THRESHOLD_";
  static constexpr const char* kTrimVariable = "MALLOC_TRIM_THRESHOLD_";
  static constexpr const char* kPadVariable = "MALLOC_TOP_PAD_";

  /// A block from this size on is mapped by itself, and given back when it is freed.
  static constexpr int64_t kMmapThreshold = int64_t{1} << 30;
  /// The largest that glibc takes before 2.35.
  static constexpr int64_t kOldMmapThreshold = int64_t{32} << 20;
  /// Free memory at the heap's end is given back from this size on.
  static constexpr int64_t kTrimThreshold = int64_t{4} << 30;
  /// The heap grows by this beyond what is asked for: addresses, no pages before they are used.
  static constexpr int64_t kTopPad = int64_t{64} << 20;
};

/// Whether the environment sets up glibc's malloc already, by a variable of these or by
/// GLIBC_TUNABLES.
inline bool environment_sets_malloc() {
  for (const char* name : {MallocSettings::kMmapVariable, MallocSettings::kTrimVariable,
                           MallocSettings::kPadVariable}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr &&
         std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos;
}

/// Whether malloc is told there to keep as many bytes that are freed, as for ranks of `oslo run`.
inline bool environment_keeps_freed(size_t bytes) {
  const char* const trim = std::getenv(MallocSettings::kTrimVariable);
  return trim != nullptr && std::strtoull(trim, nullptr, 10) >= bytes;
}

/// Sets this process's threshold to the largest that its glibc takes of the two, and returns that;
/// 0 where there is no glibc. An older one refuses a larger number, and would then map all blocks
/// from 128 KiB on, as it no longer adapts its threshold once another one has been set.
inline int64_t set_mmap_threshold() {
#ifdef __GLIBC__
  for (const int64_t bytes : {MallocSettings::kMmapThreshold, MallocSettings::kOldMmapThreshold}) {
    if (mallopt(M_MMAP_THRESHOLD, static_cast<int>(bytes)) == 1) return bytes;
  }
#endif
  return 0;
}

}  // namespace oslo
