#pragma once

#include <span>

#include "mpu/base/error.h"
#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// What a plan asks of a result or an input that this has no place for. Seen in an example's run it
/// refuses the plan.
class PlanMismatch : public Error {
 public:
  using Error::Error;
};

/// The operand that the plan speaks of, the only one; -1 without one.
int planned_weight(std::span<const Value> operands);

/// Cuts inputs of the weight, operand `weight`, that come whole where its plan has them cut.
void cut_inputs(std::span<Value> operands, const ContextPtr& context, int weight);

/// Makes a result of what an operator gave: a sum over the ranks of the axes `partial`, whole on
/// the axes `free`. The one place that reads how a plan wants a result to lie; without one (`use`
/// is empty) sums are all-reduced. `may_wait`: the rule takes a sum that is to join others as it
/// is.
Value finish_result(Value local, const ContextPtr& context, const Axes& partial, const Axes& free,
                    const WeightUse& use, bool may_wait = false);

}  // namespace oslo
