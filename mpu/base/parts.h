#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Tensors as a group's transports take them, and the ranks' parts of them.
namespace oslo::parts {

int64_t sum(c10::IntArrayRef sizes);

/// Elements beside one element of `dim`; also right when this rank has none of them.
int64_t row_size(const at::Tensor& tensor, int64_t dim);

/// Uninitialized, of `like`'s shape but for `size` along `dim`.
at::Tensor resized(const at::Tensor& like, int64_t dim, int64_t size);

/// What backends and files can read: contiguous, with no conjugation or sign left to do, and with
/// memory. (The gradient of sgn, and so the second one of abs, is zeros without any: a tensor with
/// a null pointer that says `_is_zerotensor()`.)
at::Tensor plain(const at::Tensor& tensor);

/// What backends get: the same memory, complex numbers as pairs of real ones, which they know. A
/// tensor of its own, without the history that the other one has or will have: a backend's thread
/// lets go of it when it gets round to that, and with a graph it would let go of the group's last
/// owner, while no thread of a group can end it.
at::Tensor as_real(const at::Tensor& tensor);

/// The ranks' parts of `whole`, as views of it.
std::vector<at::Tensor> as_real_parts(const at::Tensor& whole, int64_t dim, c10::IntArrayRef sizes);

}  // namespace oslo::parts
