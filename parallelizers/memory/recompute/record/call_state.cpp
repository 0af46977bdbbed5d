#include "parallelizers/memory/recompute/record/call_state.h"

#include <ATen/autocast_mode.h>

namespace oslo::recompute {
namespace {

constexpr std::array<c10::DeviceType, 2> kDevices = {c10::kCPU, c10::kCUDA};

std::array<c10::ScalarType, 2> autocast_types() {
  return {at::autocast::get_autocast_dtype(kDevices[0]),
          at::autocast::get_autocast_dtype(kDevices[1])};
}

void set_autocast_types(const std::array<c10::ScalarType, 2>& types) {
  for (size_t i = 0; i < types.size(); ++i) at::autocast::set_autocast_dtype(kDevices[i], types[i]);
}

}  // namespace

CallState::CallState()
    : keys_(c10::impl::tls_local_dispatch_key_set()),
      gradients_(c10::AutogradState::get_tls_state()),
      types_(autocast_types()) {}

CallState::Scope::Scope(const CallState& state)
    : keys_(state.keys_),
      gradients_(c10::AutogradState::get_tls_state()),
      types_(autocast_types()) {
  c10::AutogradState::set_tls_state(state.gradients_);
  set_autocast_types(state.types_);
}

CallState::Scope::~Scope() {
  c10::AutogradState::set_tls_state(gradients_);
  set_autocast_types(types_);
}

NoCastCache::NoCastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoCastCache::~NoCastCache() {
  at::autocast::set_autocast_cache_enabled(before_);
}

}  // namespace oslo::recompute
