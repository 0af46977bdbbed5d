#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "parallelizers/placement/door/autocast.h"
#include "parallelizers/placement/door/autocast_state.h"

namespace oslo::recompute {

/// What of a thread decides how operators run: gradient and inference mode, autocast, keys that are
/// included or excluded. Taken where a segment begins.
class CallState {
 public:
  CallState();

  /// While alive the thread is in that state; its own comes back afterwards.
  class Scope {
   public:
    explicit Scope(const CallState& state);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const ForwardAgain forward_again_;
    c10::impl::ForceDispatchKeyGuard keys_;
    c10::AutogradState gradients_;
    AutocastTypes types_;
  };

 private:
  c10::impl::LocalDispatchKeySet keys_;
  c10::AutogradState gradients_;
  AutocastTypes types_;
};

}  // namespace oslo::recompute
