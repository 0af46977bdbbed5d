#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "mpu/base/node_ptr.h"

namespace oslo {

/// Remembers the last few values that entered a parallel region, so that consumers of one value
/// (query, key and value; gate and up) share one node and backward reduces once per value.
/// Holds no value and no graph alive: an entry lives as long as the graph of its first consumer.
class SharedNodes {
 public:
  /// The node made for `tensor` in its present version and place in the graph, or null.
  NodePtr find(const at::Tensor& tensor);
  void remember(const at::Tensor& tensor, const NodePtr& node);

 private:
  struct Entry {
    // A weak reference keeps the address from being reused for another tensor.
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> tensor;
    uint32_t version = 0;
    WeakNodePtr node{NodePtr()};
  };
  std::mutex mutex_;
  std::array<Entry, 8> entries_;
  size_t next_ = 0;
};

}  // namespace oslo
