#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>

#include "parallelizers/placement/door/autocast.h"

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
    std::array<c10::ScalarType, 2> types_;
  };

 private:
  c10::impl::LocalDispatchKeySet keys_;
  c10::AutogradState gradients_;
  std::array<c10::ScalarType, 2> types_;  ///< of autocast
};

/// While alive autocast remembers no casts: a copy that was made outside of a segment would be
/// kept by the cache, or be gone, when the segment runs again. LibTorch's own function that empties
/// the cache would empty that of other threads, which may be other ranks.
class NoCastCache {
 public:
  NoCastCache();
  ~NoCastCache();
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool before_;
};

}  // namespace oslo::recompute
