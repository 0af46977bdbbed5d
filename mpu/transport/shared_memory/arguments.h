#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "mpu/transport/shared_memory/collective/buffer.h"
#include "mpu/transport/shared_memory/collective/collective.h"

namespace oslo::shared_memory {

using Tensors = std::vector<at::Tensor>;

// What c10d's calls look like and what is wrong with them; `operation` is for the error.

/// The one tensor, or list, that c10d hands over in a list.
const at::Tensor& only(const Tensors& tensors, const char* operation);
const Tensors& only(const std::vector<Tensors>& lists, const char* operation);

void check_root(int64_t root, int64_t root_tensor, int size);

/// All of one dtype, and `count` of them.
void check_list(const Tensors& tensors, const at::Tensor& like, size_t count,
                const char* operation);

Buffers inputs_of(const Tensors& tensors);
Buffers outputs_of(const Tensors& tensors);

/// `whole` as `count` parts of one size; `part` has that size.
Buffers parts_of(const Buffer& whole, const Buffer& part, int count, const char* operation);

/// `whole`, the memory of `tensor`, as parts of so many rows each; all of one size where `rows` is
/// empty.
Buffers parts_of(const Buffer& whole, const at::Tensor& tensor, const std::vector<int64_t>& rows,
                 int count);

/// What this rank multiplies by for a PREMUL_SUM; `tensor` itself for other operations.
at::Tensor multiplied(const at::Tensor& tensor, const c10d::ReduceOp& op, bool in_place);

}  // namespace oslo::shared_memory
