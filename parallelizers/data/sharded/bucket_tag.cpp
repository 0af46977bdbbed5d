#include "parallelizers/data/sharded/bucket_tag.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace oslo::bucket_tag {
namespace {

size_t bytes_of(const at::Tensor& element) {
  return std::min<size_t>(element.element_size(), sizeof(size_t));
}

bool digit(size_t bucket, int64_t i) {
  return ((bucket >> i) & 1) != 0;
}

}  // namespace

at::Tensor bits(size_t bucket, const at::TensorOptions& options) {
  const at::Tensor element = at::zeros({1}, options.device(at::kCPU));
  std::memcpy(element.mutable_data_ptr(), &bucket, bytes_of(element));  // little-endian
  return element.to(options.device());
}

size_t number_in(const at::Tensor& bits) {
  size_t number = 0;
  std::memcpy(&number, bits.const_data_ptr(), bytes_of(bits));
  return number;
}

std::vector<float> digits(size_t bucket) {
  std::vector<float> numbers{1};
  for (int64_t i = 0; i < kDigits; ++i) numbers.push_back(digit(bucket, i) ? 1 : 0);
  return numbers;
}

bool is_average_of(size_t bucket, const at::Tensor& averaged) {
  const at::Tensor values = averaged.to(at::kCPU, at::kDouble);
  const auto* const value = values.const_data_ptr<double>();
  for (int64_t i = 0; i < kDigits; ++i) {
    if (value[1 + i] != (digit(bucket, i) ? value[0] : 0)) return false;
  }
  return true;
}

}  // namespace oslo::bucket_tag
