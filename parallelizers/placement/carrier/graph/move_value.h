#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

// An operator of one pipeline stage that writes into a value of another (`h += f(h)`, of which h
// lies on stage 0 and f on stage 1) moves it: the program's tensor stays the object that it was,
// and what it stands for is the new value, on the later stage. What shared its memory keeps the
// value from before, and must not be taken for the new one.

/// Whether what `target` stands for may move: an activation, or an ordinary tensor that a stage's
/// value was written into. Not a parameter or buffer, nor a view of one or of a tensor that the
/// program still has, which the write would have to reach; nor a tensor of inference mode, which
/// counts no writes; nor one with a gradient where none is recorded, whose place in the graph a
/// write leaves as it is. The same on all ranks.
bool may_move(const at::Tensor& target);

/// Gives `target` another value, in the layout of its stages. Its local tensor is contiguous and
/// nobody else's; its history becomes the target's.
void move_value(const at::Tensor& target, Value value);

}  // namespace oslo
