#pragma once

#include <optional>

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Small steps that several rules share.

/// left + right, aligned from the right; the result lies like `left`.
Value add_values(const Value& left, const Value& right);

/// All-reduce forward and backward: a statistic that every rank then uses (layer norm's mean over a
/// cut dimension).
at::Tensor reduce_and_copy(const at::Tensor& partial, const Mesh& mesh, int axis);

/// The largest (or smallest) over the axis, without gradient.
at::Tensor reduce_extreme(const at::Tensor& tensor, const Mesh& mesh, int axis, bool largest);

/// Throws unless 0 <= index < size for all: an index that no rank holds would silently count as
/// nothing. `except` is allowed. On another device than the CPU, without waiting for it: the device
/// fails as it does where LibTorch's own look-ups find such an index.
void check_indices(const at::Tensor& indices, int64_t size, const char* operation,
                   std::optional<int64_t> except = {});

/// A loss's targets as int64, where they are the bytes that LibTorch takes as well: what ranks look
/// up by is shifted.
Value with_wide_classes(Value target);

/// Position in the whole dimension of each element that this rank holds (int64, 1-D).
at::Tensor global_indices(const Layout::AxisCut& cut, int rank, const at::Tensor& like);

/// The first index of this rank's stretch, for a contiguous cut.
int64_t first_index(const Cut& cut, int rank);

}  // namespace oslo
