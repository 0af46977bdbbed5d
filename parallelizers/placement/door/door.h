#pragma once

#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace oslo {

/// The one kernel that every operator on a placed or marked tensor enters.
void door(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

}  // namespace oslo
