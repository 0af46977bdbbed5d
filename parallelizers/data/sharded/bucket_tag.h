#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

/// Which bucket a rank moves. It travels behind the rank's parts: layers of one size would pass for
/// each other, and ranks that part ways there would compute with a mixture of two.
namespace oslo::bucket_tag {

/// For what arrives as it was sent: one element of this type, whose bits are the bucket's number,
/// as far as they are enough.
at::Tensor bits(size_t bucket, const at::TensorOptions& options);
/// Of such an element on the CPU.
size_t number_in(const at::Tensor& bits);

/// For what is averaged over ranks: a one, and the number's digits, which any type has exactly.
constexpr int64_t kDigits = 10, kAveraged = 1 + kDigits;
std::vector<float> digits(size_t bucket);
/// Whether all ranks sent those of `bucket`; if not, each sees it.
bool is_average_of(size_t bucket, const at::Tensor& averaged);

}  // namespace oslo::bucket_tag
