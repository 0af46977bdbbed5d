#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "parallelizers/placement/layout/value.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

// Random numbers are drawn in memory order, so that a placed value has to say the strides that one
// device's has. A part does not tell them where it has at most one element along a dimension, or
// was moved.

/// Whether an argument says that the result lies with its channels last, whatever the operands do.
bool asks_for_order(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);

/// Whether a result may lie otherwise on one device than its part says. Not where all arguments and
/// the part are contiguous and the part shows it: that common case costs nothing.
bool hides_strides(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                   const Value& result);

/// A shape without content of all of a placed, marked or plain tensor, with its strides: those of a
/// marked one follow from the part's.
at::Tensor whole_shape(const at::Tensor& tensor);

/// The strides of result `index` (of a list: of its `element`) on one device, by the operator
/// itself on shapes, or on zeros where its kernel for shapes says otherwise, once for all calls
/// alike (the context keeps it). Empty where neither tells: an operator that reads elements,
/// attention.
std::vector<int64_t> strides_on_one_device(const ModelContext& context, const OperatorEntry& op,
                                           c10::ArrayRef<c10::IValue> arguments, size_t index,
                                           size_t element);

}  // namespace oslo
