#include "parallelizers/placement/door/autocast_state.h"

#include <ATen/autocast_mode.h>

namespace oslo {
namespace {

constexpr std::array<c10::DeviceType, 2> kDevices = {c10::kCPU, c10::kCUDA};

}  // namespace

AutocastTypes::AutocastTypes()
    : types_{at::autocast::get_autocast_dtype(kDevices[0]),
             at::autocast::get_autocast_dtype(kDevices[1])} {}

void AutocastTypes::set() const {
  for (size_t i = 0; i < types_.size(); ++i) {
    at::autocast::set_autocast_dtype(kDevices[i], types_[i]);
  }
}

NoCastCache::NoCastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoCastCache::~NoCastCache() {
  at::autocast::set_autocast_cache_enabled(before_);
}

bool is_within_autocast_guard() {
  // LibTorch tells the number of guards only to who comes or goes.
  const bool guarded = at::autocast::increment_nesting() > 1;
  at::autocast::decrement_nesting();
  return guarded;
}

}  // namespace oslo
