#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/engine/call.h"

namespace oslo {

// Steps that norms over the channels of x (n, C, field..) share. Beside x there are tensors of one
// number for each channel (C), of which some may be absent.

/// Letters of x are those of `letters()`: the batch, the channels, the field.
constexpr char kBatch = 'a', kChannel = 'b';
constexpr const char* kChannels = "b";

/// Shapes that do not fit, or are empty, are left to the operator. x comes first.
bool fit_channels(c10::ArrayRef<Value> operands);

/// All have the channels of x; absent operands have a place in the map, too.
DimensionMap map_of_channels(c10::ArrayRef<Value> operands);

/// Reduced over these axes, forward and backward.
at::Tensor sum_over(at::Tensor sum, const Axes& axes, const ContextPtr& context);

/// (C) beside x (n, C, field..).
at::Tensor per_channel(const at::Tensor& tensor, int64_t dims);

/// The type in which LibTorch's kernels return statistics of `x`: that of the tensors beside it,
/// where these are wider, and on devices that of the sums.
at::ScalarType type_of_statistics(const at::Tensor& x, c10::ArrayRef<Value> beside);

}  // namespace oslo
