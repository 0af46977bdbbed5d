#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace oslo::shared_memory {

/// A CPU tensor's memory in one piece: its own, or a copy where it has gaps or another order (or
/// conjugation or a sign left to do). A copy is made when the operation is called and written back
/// when it is done.
class Buffer {
 public:
  Buffer() = default;
  /// To be read only.
  static Buffer input(const at::Tensor& tensor);
  /// To be written; what is there beforehand counts only `with_content`.
  static Buffer output(const at::Tensor& tensor, bool with_content);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  c10::ScalarType type() const { return tensor_.scalar_type(); }

  /// A part of it, which is written back with the whole.
  Buffer part(size_t begin, size_t bytes) const;

  bool is_copy() const { return copy_.defined(); }
  void write_back() const;

 private:
  at::Tensor tensor_;
  at::Tensor copy_;  ///< undefined where the tensor itself is used
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Throws unless this backend can move `tensor`.
void check_movable(const at::Tensor& tensor);

}  // namespace oslo::shared_memory
