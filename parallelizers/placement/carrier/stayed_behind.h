#pragma once

#include <c10/core/TensorImpl.h>

namespace oslo {

/// Throws where a tensor, placed or marked, shares memory with one that has moved to another stage
/// since (libtorch/version_bit.h).
void check_not_left_behind(const c10::TensorImpl& impl);

}  // namespace oslo
