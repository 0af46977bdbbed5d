#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace oslo {

class Group;

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

/// Whether to start an all-reduce or a reduce-scatter of a tensor like this one early, in backward,
/// and compute meanwhile. On devices, whose collectives run on a stream of their own. On the CPU
/// over shared memory, where it takes one round: this rank's part is then put in at the start, and
/// whoever waits later finds the others'. Not for larger ones, nor over Gloo: these need a thread,
/// on the cores that compute (docs/performance.md). The same on all ranks of the group.
bool overlap_pays(const at::Tensor& tensor, const Group& group);

/// Whether a tensor like this one takes longer to travel than the CPU works for it: on devices, and
/// over Gloo, between hosts. Over shared memory all of the way is work. The same on all ranks of
/// the group.
bool moves_aside(const at::Tensor& tensor, const Group& group);

}  // namespace oslo
