#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace oslo {

/// What travels of a tensor besides its bytes. A message's header holds one for each tensor.
struct TensorHeader {
  bool defined = false;
  at::ScalarType dtype = at::kFloat;
  c10::DeviceType device = c10::kCPU;
  std::vector<int64_t> sizes;

  TensorHeader() = default;
  /// Throws for what does not travel: sparse, quantized and nested tensors.
  explicit TensorHeader(const at::Tensor& tensor);

  int64_t numel() const;
  /// Whether bytes of it travel.
  bool has_bytes() const { return defined && device != c10::kMeta && numel() > 0; }
  int64_t bytes() const;
  /// "Float[2, 3]", "no tensor".
  std::string to_text() const;
};

/// A message's header as numbers: blocks of `kHeaderWords`, of which the first says how many there
/// are. Headers of at least a dozen tensors fit one block.
struct MessageHeader {
  static constexpr int64_t kWords = 128;

  std::vector<TensorHeader> tensors;
  /// How many tensors on devices this rank has sent to that one before: they have no tags.
  int64_t device_tensors_before = 0;
  /// How many bytes of tensors follow in the same piece (message_frame.h); 0: they come by
  /// themselves.
  int64_t framed_bytes = 0;

  std::vector<int64_t> words() const;
  /// How many words a header has that begins with `block`; a multiple of `kWords`. Throws when it
  /// begins no header: something else than `send` has sent it.
  static int64_t count_words(const std::vector<int64_t>& block);
  static MessageHeader from_words(const std::vector<int64_t>& words);
};

}  // namespace oslo
