#include "mpu/collectives/overlap.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "mpu/group/group.h"
#include "mpu/transport/shared_memory/backend.h"

namespace oslo {
namespace {

thread_local std::optional<bool> asked;

const SharedMemoryBackend* shared_memory_of(const Group& group) {
  const auto backend = group.process_group()->getDefaultBackend();
  return dynamic_cast<const SharedMemoryBackend*>(backend.get());
}

bool in_one_round(const at::Tensor& tensor, const Group& group) {
  const SharedMemoryBackend* const shared = shared_memory_of(group);
  return shared != nullptr && shared->in_one_round(static_cast<int64_t>(tensor.nbytes()));
}

}  // namespace

OverlapScope::OverlapScope(bool overlaps) : previous_(std::exchange(asked, overlaps)) {}

OverlapScope::~OverlapScope() {
  asked = previous_;
}

bool overlap_pays(const at::Tensor& tensor, const Group& group) {
  if (tensor.is_meta()) return false;
  if (asked) return *asked;
  return !tensor.is_cpu() || in_one_round(tensor, group);
}

bool moves_aside(const at::Tensor& tensor, const Group& group) {
  if (tensor.is_meta()) return false;
  return !tensor.is_cpu() || shared_memory_of(group) == nullptr;
}

}  // namespace oslo
