#pragma once

#include <ATen/record_function.h>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// While alive, notes whether LibTorch runs an operator on this thread that autocast has a kernel
/// for: an operator that is made of others has such a one within.
class AutocastMet {
 public:
  AutocastMet();
  ~AutocastMet();
  AutocastMet(const AutocastMet&) = delete;
  AutocastMet& operator=(const AutocastMet&) = delete;

  bool any() const { return any_; }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function);

  AutocastMet* const outer_;
  const at::RecordFunctionGuard observed_{true};
  at::CallbackHandle handle_;
  bool any_ = false;
};

/// Whether the types of what a call gives may be others than shapes tell, once operators within it
/// have autocast: LibTorch has none for tensors without content, as other pipeline stages have.
bool may_autocast_shapes(const Call& call);

}  // namespace oslo
