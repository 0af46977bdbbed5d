#pragma once

#include "parallelizers/placement/engine/call.h"

namespace oslo {

/// Steps for operators on images, whose kernels take only so much of a cut.

/// What a dimension without elements is lent. Sums over it take zeros; statistics need numbers that
/// are not all alike, to have a deviation to divide by.
enum class Lent { zeros, distinct };

/// Runs `function` on local operands of `map`, none of them empty: many kernels reject a tensor
/// without elements, others (cumprod's) leave it out of the graph, and a rank may hold none. A
/// dimension without elements is lent a unit, and the results are cut back, so that this rank too
/// takes part in backward, and in the backward of that.
std::vector<c10::IValue> on_elements(const DimensionMap& map, c10::ArrayRef<at::Tensor> local,
                                     const Call::LocalFunction& function, Lent lent = Lent::zeros);

/// `call.run(map)`, on no empty operand.
void run_on_elements(Call& call, const DimensionMap& map);

/// cat. LibTorch's leaves vectors without elements out of the graph: their ranks would go another
/// way backward than those that hold some.
at::Tensor joined(std::vector<at::Tensor> parts, int64_t dim);

/// Operands whose pieces are not whole units of the map's factors will be gathered: tells the
/// parameters behind them.
void wish_whole_units(const DimensionMap& map, c10::ArrayRef<Value> operands);

/// A parallel parameter, its gradient, or a view of one.
bool shows_parameter(const at::Tensor& tensor);

/// An optional tensor argument: operators take an undefined tensor for a given one.
inline c10::IValue or_none(const at::Tensor& tensor) {
  return tensor.defined() ? c10::IValue(tensor) : c10::IValue();
}

}  // namespace oslo
