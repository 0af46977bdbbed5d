#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace oslo {

/// LibTorch counts the writes to a tensor in 32 bits that all its views share, and compares counts
/// for equality only. The highest one is the library's: it says that the writer has left, and
/// counts on by itself (placement/carrier/stayed_behind.h). A tensor that is written two thousand
/// million times would be taken for one.
constexpr uint32_t kLeftBehindBit = uint32_t{1} << 31;

/// Whether who wrote to a tensor has left those that shared its memory, of which this is one.
inline bool is_left_behind(const c10::TensorImpl& impl) {
  const c10::VariableVersion& writes = impl.version_counter();
  return writes.enabled() && writes.current_version() >= kLeftBehindBit;
}

/// From here on `leaving` counts its writes alone, and the others are left behind: nobody takes it
/// for what it was at any of theirs.
inline void leave_behind(c10::TensorImpl& leaving) {
  c10::VariableVersion shared = leaving.version_counter();
  const uint32_t writes = shared.current_version();
  shared.set_version(kLeftBehindBit);
  leaving.set_version_counter(c10::VariableVersion(writes + 1));
}

}  // namespace oslo
