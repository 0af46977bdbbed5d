#pragma once

#include <functional>

namespace oslo {

/// Of the backward pass that this thread runs a node of: whether it is one of autograd::grad, where
/// nothing comes to `.grad`.
bool pass_hands_gradients_out();

/// What is done when a pass has run: all of one round before any of the next.
enum class EndOfPass {
  own = 1,  ///< what this rank has to say, and averages that are under way
  sums,     ///< of what other ranks said (Deposits)
  marks,    ///< of the gradients that came of that
  copies,   ///< averages of those that groups have averaged (ShardCopies)
  last,     ///< what looks at the gradients
};

/// Has it call `then` when it has run, in that round; not where it throws. Callbacks of one round
/// run in the order in which they were queued.
void at_end_of_pass(EndOfPass round, std::function<void()> then);

/// Runs `part` in a backward pass of its own, of no graph: it may give gradients to accumulators,
/// and have something called at the pass's end. Throws what it throws.
void run_as_pass(std::function<void()> part);

}  // namespace oslo
