#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// Whether a hook of the program's (`register_hook`) waits for the gradient of `tensor`. LibTorch
/// keeps the list of those that `remove_hook` has taken off.
bool has_live_hooks(const at::Tensor& tensor);

}  // namespace oslo
