#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Stands before the door for every operator of a thread, whatever tensors it meets, as long as it
/// is in a `Scope`. Nothing is asked on a thread without one. Of one thread.
class OperatorTap {
 public:
  virtual ~OperatorTap() = default;

  /// Runs the operator: its arguments are on the stack, its results are to be there afterwards.
  /// `keys`: those that it was dispatched by.
  virtual void run(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;

  /// That of this thread; null without one.
  static OperatorTap* current();

  /// While alive, operators of this thread come to `tap`. Scopes nest; the innermost is asked.
  class Scope {
   public:
    explicit Scope(OperatorTap& tap);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    OperatorTap* const outer_;
    const bool included_;
  };

  /// While alive, operators of this thread go their usual way: what one operator is made of.
  class Lifted {
   public:
    Lifted();
    ~Lifted();
    Lifted(const Lifted&) = delete;
    Lifted& operator=(const Lifted&) = delete;

    /// Whether this thread is inside of one operator of a tap.
    static bool active();

   private:
    OperatorTap* const tap_;
    const bool included_, outer_;
  };
};

}  // namespace oslo
