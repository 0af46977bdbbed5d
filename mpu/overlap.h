#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace oslo {

/// Says for what this thread records whether backward overlaps collectives with computation, in
/// place of what pays; until it goes out of scope.
class OverlapScope {
 public:
  explicit OverlapScope(bool overlaps);
  ~OverlapScope();
  OverlapScope(const OverlapScope&) = delete;
  OverlapScope& operator=(const OverlapScope&) = delete;

 private:
  std::optional<bool> previous_;
};

/// Whether to start a collective on tensors like this one early and compute meanwhile. On devices,
/// whose collectives run on a stream of their own. Not on the CPU: a started collective needs a
/// thread of its own there, on the cores that compute.
bool overlap_pays(const at::Tensor& tensor);

}  // namespace oslo
