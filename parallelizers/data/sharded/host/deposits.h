#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "parallelizers/data/sharded/host/host_ranks.h"
#include "parallelizers/data/sharded/host/host_weight.h"

namespace oslo {

/// Gradients of weights that ranks of a host share. A backward pass leaves what it computes of
/// whole gradients, each rank in memory of its own, and says when it has ended; then each rank adds
/// up its stretch of what all have left, in the order of ranks. What one rank has not left counts
/// as zeros, and what none has is no gradient. So ranks may come to different weights, in any
/// order, and none waits within a pass; they take part in equally many passes that reach a weight.
///
/// Several passes may be a `Step`: what they leave adds up on each rank, and all add up when the
/// step has ended.
///
/// A pass that does not come on another rank, or has thrown there, is a `PeerError`. The memory,
/// that of a whole gradient a rank, is given back when all have taken their part, or kept for the
/// next pass where malloc is told to keep what is freed: fresh pages cost as much here as there.
/// One thread at a time, inside the pass.
class Deposits {
  class Pass;

 public:
  /// Whose gradients they are.
  class Owner {
   public:
    virtual ~Owner() = default;
    struct Types {
      at::ScalarType average;     ///< a step's gradients lie in it, too
      at::ScalarType travels_in;  ///< what a pass's gradients lie in until they are averaged
    };
    /// The same on all ranks.
    virtual Types types() const = 0;
    virtual void take(const at::Tensor& average) = 0;  ///< this rank's part
  };

  /// Where a rank's gradients of one weight lie.
  struct Place {
    HostWeight weight;
    size_t offset;  ///< in a rank's memory
    size_t bytes;
    std::shared_ptr<Owner> owner = nullptr;
    bool there = false;  ///< its memory, from an earlier pass
  };

  /// A step of several backward passes, those between its making and `finish`. Where it ends
  /// without that it has thrown. All ranks have as many steps.
  class Step {
   public:
    explicit Step(Deposits& deposits);
    /// In a backward pass of its own, in which averages come to their owners.
    void finish();

   private:
    std::shared_ptr<Pass> pass_;
  };

  /// In the memory of `ranks`: at its beginning when each has left what (`words_for` bytes), from
  /// `begin` on `bytes` for each rank.
  Deposits(std::shared_ptr<HostRanks> ranks, std::vector<Place> places, size_t begin, size_t bytes);
  static size_t words_for(int ranks, size_t weights);

  void set_owner(size_t weight, std::shared_ptr<Owner> owner) {
    state_->places[weight].owner = std::move(owner);
  }
  /// The present backward pass reaches a weight, whether or not it leaves a gradient.
  void reached() { pass(); }
  /// `gradient`: of a whole weight, of this rank's loss.
  void leave(size_t weight, const at::Tensor& gradient);
  /// Gives memory back that all have taken their part of, if that was not done yet.
  void tidy();

 private:
  struct State {
    std::shared_ptr<HostRanks> ranks;
    at::Tensor divisor;  ///< how many they are
    std::vector<Place> places;
    size_t begin, bytes;
    bool keeps = false;  ///< its memory from pass to pass
    std::weak_ptr<Pass> pass = {};
    bool left_any = false;

    size_t memory_of(int rank) const;
    at::ScalarType type_of(size_t weight, const Pass& in) const;
    at::Tensor deposit(size_t weight, int rank, at::ScalarType type) const;
    at::Tensor part_of_deposit(size_t weight, int rank, at::ScalarType type) const;
    std::atomic<uint64_t>& left_in(size_t weight, int rank) const;
    at::Tensor average(size_t weight, const Pass& over) const;
    void add_up(const Pass& over);
    void tidy();
  };

  std::shared_ptr<Pass> pass();

  const std::shared_ptr<State> state_;
};

}  // namespace oslo
