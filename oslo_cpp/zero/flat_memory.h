#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// A parameter, gradient or state, or this rank's part of one, in one dimension, in the order in
/// which the elements lie: an ordinary tensor over the same memory, without history. Throws `Error`
/// for a tensor with gaps or repeats in its memory.
at::Tensor flat_memory(const at::Tensor& tensor);

/// The elements of `tensor` in the order in which they lie with `strides`: over the same memory
/// where it has these, else a copy.
at::Tensor flat_like(const at::Tensor& tensor, c10::IntArrayRef strides);

}  // namespace oslo
