#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "mpu/base/node_ptr.h"

namespace torch::autograd {
struct Node;
}

namespace oslo {

/// Hooks that are told when gradients have arrived at parameters, on the thread of the backward
/// pass. They are taken off with it.
class GradientWatch {
 public:
  GradientWatch() = default;
  ~GradientWatch() { clear(); }
  GradientWatch(const GradientWatch&) = delete;
  GradientWatch& operator=(const GradientWatch&) = delete;

  /// Several hooks of a parameter run in the order in which they were added.
  void add(const at::Tensor& parameter, std::function<void()> then);
  void clear();

 private:
  std::vector<std::pair<uintptr_t, NodePtr>> hooks_;
};

}  // namespace oslo
