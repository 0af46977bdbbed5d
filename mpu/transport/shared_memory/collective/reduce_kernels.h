#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace oslo::shared_memory {

/// out[i] = inputs[0][i] op inputs[1][i] op ..., always in this order: the same bits wherever and
/// whenever it is computed. `out` may be one of the inputs. Half and bfloat16 are accumulated in
/// float and rounded once.
using ReduceKernel = void (*)(void* out, const void* const* inputs, int count, size_t elements);

/// The kernel for `type` (complex numbers are pairs of real ones to it) and `op`; PREMUL_SUM is a
/// sum, of inputs that have been multiplied. Throws where `op` means nothing for `type`.
/// AVG of integers is rounded towards zero. Bool is logical: SUM and MAX are OR; PRODUCT, MIN, AND.
ReduceKernel reduce_kernel(c10::ScalarType type, c10d::ReduceOp::RedOpType op);

/// How an operation is called in messages, such as "sum".
const char* name_of(c10d::ReduceOp::RedOpType op);

}  // namespace oslo::shared_memory
