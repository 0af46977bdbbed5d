#include "parallelizers/memory/recompute/record/call_state.h"

namespace oslo::recompute {

CallState::CallState()
    : keys_(c10::impl::tls_local_dispatch_key_set()),
      gradients_(c10::AutogradState::get_tls_state()) {}

CallState::Scope::Scope(const CallState& state)
    : keys_(state.keys_), gradients_(c10::AutogradState::get_tls_state()) {
  c10::AutogradState::set_tls_state(state.gradients_);
  state.types_.set();
}

CallState::Scope::~Scope() {
  c10::AutogradState::set_tls_state(gradients_);
  types_.set();
}

}  // namespace oslo::recompute
