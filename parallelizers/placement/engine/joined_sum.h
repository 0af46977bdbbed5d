#pragma once

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Additions of values that are partial sums (layout/partial_sum.h). Of two the parts are added, of
/// one and a whole value the whole is added on one rank; the sum of all that the plan joins is
/// all-reduced. So is what meets anything else.

/// Runs an addition, or a dropout that drops nothing, on partial sums as they are. False, with
/// nothing done, where no operand is one, or the two are not for each other.
bool run_joined(Call& call);

/// Whether `whole` may be added to a partial sum on one rank.
bool joins_whole(const Value& sum, const Value& whole);
/// sum + alpha * whole, a partial sum again. One axis of `sum` waits; `joins_whole` holds.
Value add_to_sum(const Value& sum, const Value& whole, const at::Scalar& alpha = 1);

}  // namespace oslo
