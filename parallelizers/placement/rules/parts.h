#pragma once

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Steps for operators on images, whose kernels take only so much of a cut.

/// Runs `function` on local operands of `map`, none of them empty: many kernels reject a tensor
/// without elements, and a rank may hold none. A dimension without elements is lent a unit of
/// zeros, and the results are cut back, so that this rank too takes part in backward.
std::vector<c10::IValue> on_elements(const DimensionMap& map, c10::ArrayRef<at::Tensor> local,
                                     const Call::LocalFunction& function);

/// `call.run(map)`, on no empty operand.
void run_on_elements(Call& call, const DimensionMap& map);

/// Operands whose pieces are not whole units of the map's factors will be gathered: tells the
/// parameters behind them.
void wish_whole_units(const DimensionMap& map, c10::ArrayRef<Value> operands);

/// An optional tensor argument: operators take an undefined tensor for a given one.
inline c10::IValue or_none(const at::Tensor& tensor) {
  return tensor.defined() ? c10::IValue(tensor) : c10::IValue();
}

}  // namespace oslo
