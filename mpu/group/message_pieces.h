#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "mpu/base/parts.h"
#include "mpu/transport/presence/pending.h"

/// What a message is moved in: tensors of bytes, and of words.
namespace oslo::pieces {

/// Says of every tensor on a device how many bytes it has, in the order in which they are sent.
inline constexpr int kSizesTag = std::numeric_limits<int>::max();
/// Of the tensors themselves: who carries them knows no other.
inline constexpr int kDeviceTag = 0;

/// Its memory as bytes: what every transport moves.
inline at::Tensor as_bytes(const at::Tensor& tensor) {
  return parts::as_real(tensor).reshape(-1).view(at::kByte);
}

inline at::Tensor words_tensor(const std::vector<int64_t>& words) {
  return at::tensor(c10::IntArrayRef(words), at::kLong);
}

inline std::vector<int64_t> words_of(const at::Tensor& tensor) {
  const auto* words = tensor.const_data_ptr<int64_t>();
  return {words, words + tensor.numel()};
}

/// `from` in the world.
inline std::string receiving(const at::Tensor& bytes, int from, int tag) {
  if (!bytes.is_cpu()) return c10::str("receive from rank ", from, " on ", bytes.device());
  return c10::str("receive from rank ", from, " with tag ", tag);
}

/// What `start` starts. A group that has failed already says so here, others when they are waited
/// for: both under the operation's name.
template <typename Start>
c10::intrusive_ptr<c10d::Work> started(std::string_view operation, const OperationLabel& label,
                                       const Start& start) {
  try {
    return start();
  } catch (const std::exception& error) {
    fail_operation(operation, label, error);
  }
}

}  // namespace oslo::pieces
