#pragma once

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

class ContentProvider;
struct KnownShapes;

/// While alive, operators of this thread that LibTorch itself calls on shapes, in a backward pass
/// above all, run where they have no kernel for that as `call_on_shapes` runs them: once on zeros.
/// Histories are LibTorch's own. It costs every operator of the thread a look: made where it is
/// needed. At most one a thread; the provider must outlive it.
class ShapeKernels {
 public:
  explicit ShapeKernels(ContentProvider* provider);
  ~ShapeKernels();
  ShapeKernels(const ShapeKernels&) = delete;
  ShapeKernels& operator=(const ShapeKernels&) = delete;

  /// The thread's; null where it has none.
  static ShapeKernels* current();

  /// Runs an operator below autograd. False, with nothing done, where it meets no shape.
  bool run(const OperatorEntry& op, torch::jit::Stack& stack);

 private:
  const std::unique_ptr<KnownShapes> shapes_;
  ContentProvider* const provider_;
  const c10::impl::IncludeDispatchKeyGuard guard_{kDeferredKey};
};

}  // namespace oslo
