#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace oslo {

/// Set in the count of writes that a tensor which moved left to what shares its memory.
constexpr uint32_t kStayedBehind = uint32_t{1} << 31;

/// Whether a tensor, placed or marked, shares memory with one that has moved since.
inline bool stayed_behind(const c10::TensorImpl& impl) {
  const c10::VariableVersion& writes = impl.version_counter();
  return writes.enabled() && writes.current_version() >= kStayedBehind;
}

/// Throws where it does.
void check_not_left_behind(const c10::TensorImpl& impl);

}  // namespace oslo
