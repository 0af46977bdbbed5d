#pragma once

#include "parallelizers/memory/recompute/record/segment.h"

namespace oslo::recompute {

/// Decides for a segment that has ended which operators run again (`Segment::needed`) and what is
/// kept meanwhile, and lets go of everything else:
///   - what was there before the segment (parameters, inputs) is kept, whoever saved it;
///   - integers and truth values, which decide values and shapes, and what operators computed that
///     are to be kept, are kept where something that runs again, or a slot, needs them;
///   - an operator runs again where what it computes is needed by such, or where it saved something
///     that is neither an argument nor a result (a statistic). Needs are those of memory: all that
///     wrote into it run again, in order.
/// Operators on placed tensors all run again, but those that are kept: their collectives must be
/// the same on every rank, whose parts may share memory in other ways.
///
/// With `Segment::keep_at_most` below 1 some of what was asked to be kept is given up, the cheapest
/// to compute again for its bytes (given_up.h), until what is left after the segment is at most
/// that share of what would be left if nothing ran again: its inputs, parameters not among them,
/// and what its operators save. Where `Segment::given_up` says what that is, it is taken as it
/// stands.
///
/// Throws where an operator that runs again read an input that the segment wrote afterwards.
void decide_needs(Segment& segment);

/// How many of its operators are of a kind to keep.
size_t asked_operators(const Segment& segment);

/// What `decide_needs` would find to give up, for `Segment::given_up`, with nothing let go of. By
/// shapes alone where tensors are cut; but a rank whose part is one head, say, shares memory where
/// others copy, so that ranks may find others and have to agree.
std::vector<bool> find_given_up(const Segment& segment);

/// The same as `decide_needs` with every operator that can run again, of a segment that had been
/// decided; nothing is kept beyond what was.
std::vector<bool> all_needed(const Segment& segment);

}  // namespace oslo::recompute
