#include "mpu/overlap.h"

#include <utility>

namespace oslo {
namespace {

thread_local std::optional<bool> asked;

}  // namespace

OverlapScope::OverlapScope(bool overlaps) : previous_(std::exchange(asked, overlaps)) {}

OverlapScope::~OverlapScope() {
  asked = previous_;
}

bool overlap_pays(const at::Tensor& tensor) {
  if (tensor.is_meta()) return false;
  return asked.value_or(!tensor.is_cpu());
}

}  // namespace oslo
