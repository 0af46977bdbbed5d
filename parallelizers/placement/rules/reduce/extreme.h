#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/layout/value.h"
#include "parallelizers/placement/rules/reduce/reduced.h"

namespace oslo {

/// Ranks without elements along a reduced dimension have no largest one: such tensors are gathered,
/// on every rank alike.
bool some_rank_is_empty(const Value& x, const std::vector<int64_t>& reduced_dims);

/// The largest (or smallest) over dimensions: along a cut, of the ranks' largest. Its gradient is
/// shared among all elements that are as large, on whichever rank: their number and the sum of
/// their shares are reduced as well, three all-reduces of the result in place of one.
Value extreme(Value x, const Reduced& over, bool largest);

/// The largest of `part` over `dims`, which are kept, and over the ranks of `axes`, without a
/// gradient: what exponentials are taken of the distance to. Minus infinity where nobody has an
/// element.
at::Tensor largest_on_axes(const at::Tensor& part, c10::IntArrayRef dims, const Mesh& mesh,
                           const Axes& axes);

}  // namespace oslo
