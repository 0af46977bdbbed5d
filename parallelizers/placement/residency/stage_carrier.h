#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "parallelizers/placement/residency/stage_set.h"

namespace c10 {
struct IValue;
}

namespace oslo {

struct Value;

/// Follows what operators make of the parameters and buffers that pipeline stages hold. Every rank
/// tells it of them, in the same order.
class UseFollower {
 public:
  virtual ~UseFollower() = default;

  /// A parameter or buffer (itself, or a view of it) that stages `held` have is about to be used by
  /// an operator, or written, and has been.
  virtual void use(const at::Tensor& parameter, StageSet held, bool writes);
  virtual void used(const at::Tensor& parameter, StageSet held, bool writes);

  /// Whether a parameter or buffer (itself, or a view of it) may be used on stage `to` though other
  /// stages hold it. A step refuses that: what several stages use each has a copy of. Whoever looks
  /// for such uses notes them.
  virtual bool lends(const at::Tensor& parameter, int to);

  /// Whether stage `to` may write a parameter or buffer though others hold it, too, or alone. A
  /// step refuses that: the others would not see it. Whoever looks for such uses notes them.
  virtual bool takes_write(const at::Tensor& parameter, int to);
};

/// Lets all ranks know what an operator read of a value that some pipeline stages hold.
class ReadSharer {
 public:
  virtual ~ReadSharer() = default;

  /// Hands the results of an operator that read elements from the first of `owners`, the stages
  /// that computed them, to the ranks of all other stages: numbers as they are, of tensors the
  /// shapes. `results` are those of an owner, and empty elsewhere; returned is what everybody goes
  /// on with.
  virtual std::vector<c10::IValue> share_read(StageSet owners,
                                              std::vector<c10::IValue> results) = 0;
};

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
  /// operator on `stages` runs on: a leaf of that stage's part of the graph. Undefined: itself.
  virtual at::Tensor hand_over(const at::Tensor& tensor, const Value& value, StageSet stages);

  /// Brings `generator` on the ranks of all other stages to where it is on the first of `owners`,
  /// the stages that drew from it as many numbers as elements said. Every rank calls it. Whoever
  /// runs on shapes alone leaves it where it is.
  virtual void share_generator(StageSet owners, const at::Generator& generator);

  /// Who is told of uses of parameters while this carries; null: nobody asks.
  virtual UseFollower* follower() { return nullptr; }
  /// Null: an operator that reads elements is refused on the ranks of other stages.
  virtual ReadSharer* reads() { return nullptr; }

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
