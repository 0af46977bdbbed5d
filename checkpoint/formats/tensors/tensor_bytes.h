#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace oslo {

/// What LibTorch's kernels can take; a list of sizes that is longer is no shape.
inline constexpr size_t kMostDimensions = 64;

/// Bytes that a contiguous tensor of `shape` takes, or nothing where LibTorch could not count
/// them (2^63 or more). Sizes are not negative.
std::optional<uint64_t> byte_count(const std::vector<int64_t>& shape, uint64_t element_size);

/// Throws `Error`, its message starting with `where`, unless the tensor is dense and has data.
void check_has_bytes(const at::Tensor& tensor, const std::string& where);

/// The tensor's values, contiguous on the CPU: itself where it is that already.
at::Tensor to_plain_bytes(const at::Tensor& tensor);

/// Throws `Error`, its message starting with `where`, if a byte is neither 0 nor 1: C++ has no such
/// bool, and to use one is undefined.
void check_bool_bytes(const void* data, uint64_t bytes, const std::string& where);

}  // namespace oslo
