#pragma once

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Takes values from one pipeline stage to a later one. Whoever runs a step sets one for its
/// thread.
class StageCarrier {
 public:
  virtual ~StageCarrier() = default;

  /// What `value`, the inside of the placed tensor `tensor`, is on stage `to`: on the ranks of that
  /// stage a tensor with content, on all others a shape. Contiguous everywhere. Every rank calls
  /// it, in the same order. Called again for the same tensor and stage it moves nothing, unless the
  /// tensor was written since.
  virtual at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) = 0;

  /// That of this thread; null outside a step.
  static StageCarrier* current();

  /// Makes `carrier` this thread's while it lives.
  class Scope {
   public:
    explicit Scope(StageCarrier* carrier);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StageCarrier* outer_;
  };
};

}  // namespace oslo
