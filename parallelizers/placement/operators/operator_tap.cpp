#include "parallelizers/placement/operators/operator_tap.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "parallelizers/libtorch/keys.h"

namespace oslo {
namespace {

thread_local OperatorTap* innermost = nullptr;
thread_local bool lifted = false;

bool include_key(bool included) {
  const bool before = c10::impl::tls_is_dispatch_key_included(kPlacedKey);
  c10::impl::tls_set_dispatch_key_included(kPlacedKey, included);
  return before;
}

}  // namespace

OperatorTap* OperatorTap::current() {
  return innermost;
}

OperatorTap::Scope::Scope(OperatorTap& tap)
    : outer_(std::exchange(innermost, &tap)), included_(include_key(true)) {}

OperatorTap::Scope::~Scope() {
  innermost = outer_;
  include_key(included_);
}

OperatorTap::Lifted::Lifted()
    : tap_(std::exchange(innermost, nullptr)),
      included_(include_key(false)),
      outer_(std::exchange(lifted, true)) {}

bool OperatorTap::Lifted::active() {
  return lifted;
}

OperatorTap::Lifted::~Lifted() {
  lifted = outer_;
  innermost = tap_;
  include_key(included_);
}

}  // namespace oslo
