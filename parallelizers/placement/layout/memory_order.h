#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <vector>

namespace oslo {

/// In which order dimensions lie in memory, outermost first. Strides of a whole tensor tell it;
/// those of a part do not where it has one element, or none, along a dimension.
using MemoryOrder = c10::SmallVector<int64_t, 6>;

/// The order of a tensor of these sizes and strides; dimensions of one element count as innermost.
MemoryOrder memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides);

/// That of a tensor itself. A contiguous one has its dimensions in order, those of one element too.
MemoryOrder memory_order(const at::Tensor& tensor);

/// The strides of a dense tensor of these sizes in this order.
std::vector<int64_t> dense_strides(c10::IntArrayRef sizes, const MemoryOrder& order);

/// The part of a tensor of these sizes and strides with its dimensions in their order: itself where
/// it lies so, else a copy. Differentiable.
at::Tensor in_order_of(at::Tensor part, c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace oslo
