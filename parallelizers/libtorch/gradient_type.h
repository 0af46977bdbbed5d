#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// The types that autocast and `master_weights` are about.
inline bool is_half(c10::ScalarType type) {
  return type == c10::kBFloat16 || type == c10::kHalf;
}

/// The type in which gradients of a parameter arrive and add up: its own, unless somebody has set
/// another (`set_grad_dtype`), which LibTorch keeps beside its place in the graph.
inline c10::ScalarType gradient_type(const at::Tensor& parameter) {
  return parameter.grad_dtype().value_or(parameter.scalar_type());
}

/// Gradients of a leaf arrive in its own type from here on, whatever that becomes, as if nobody had
/// set another one. The gradient that it has stays as it is.
void unset_gradient_type(const at::Tensor& parameter);

}  // namespace oslo
