#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <vector>

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

  /// An operator is about to run on `stages`, one or several of which this rank has.
  virtual void enter(StageSet stages);

  /// What `value`, which this rank holds on several of its stages, is on the one among them that an
  /// operator on `stages` runs on: itself, or a leaf of that stage's part of the graph.
  virtual at::Tensor hand_over(const at::Tensor& tensor, const Value& value, StageSet stages);

  /// Whether a parameter or buffer (itself, or a view of it) may be used on stage `to` though other
  /// stages hold it. A step refuses that: what several stages use each has a copy of. Whoever looks
  /// for such uses notes them.
  virtual bool lends(const at::Tensor& parameter, int to);

  /// Whether stage `to` may write a parameter or buffer though others hold it, too, or alone. A
  /// step refuses that: the others would not see it. Whoever looks for such uses notes them.
  virtual bool takes_write(const at::Tensor& parameter, int to);

  /// A parameter or buffer (itself, or a view of it) that stages `held` have is about to be used by
  /// an operator, or written, and has been. Every rank calls them, in the same order, where
  /// `follows_uses`.
  virtual void use(const at::Tensor& parameter, StageSet held, bool writes);
  virtual void used(const at::Tensor& parameter, StageSet held, bool writes);
  virtual bool follows_uses() const { return false; }

  /// Hands the results of an operator that read elements from the first of `owners`, the stages
  /// that computed them, to the ranks of all other stages: numbers as they are, of tensors the
  /// shapes. `results` are those of an owner, and empty elsewhere; returned is what everybody goes
  /// on with. Only where `shares_reads`: otherwise such an operator is refused elsewhere.
  virtual std::vector<c10::IValue> share_read(StageSet owners, std::vector<c10::IValue> results);
  virtual bool shares_reads() const { return false; }

  /// Brings `generator` on the ranks of all other stages to where it is on the first of `owners`,
  /// the stages that drew from it as many numbers as elements said. Every rank calls it. Whoever
  /// runs on shapes alone leaves it where it is.
  virtual void share_generator(StageSet owners, const at::Generator& generator);

  /// Outside steps: that the program computed `value` from gradients of a stage
  /// (gradient_number.h). Held weakly.
  virtual void note_from_gradients(const at::Tensor& value);
  virtual bool is_from_gradients(const at::Tensor& value) const;

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
