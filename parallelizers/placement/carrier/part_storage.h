#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// A new implementation over the memory of a part, of its shape, with our key or without; it has no
/// mark, no history and a version of its own.
c10::intrusive_ptr<c10::TensorImpl> implementation_over(const at::Tensor& part, bool with_key);

}  // namespace oslo
