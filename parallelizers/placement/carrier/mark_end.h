#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// Lets a parameter that dies let go of what it is marked with. LibTorch does not: of a tensor that
/// weak references still point to it releases memory and place in the graph, and keeps the rest
/// until the last of these is gone. The mark's own accumulator has such a reference, so that mark,
/// mesh and groups would hold each other for ever. Once for a tensor, whatever marks it gets later;
/// further calls do nothing.
void end_mark_with(const at::Tensor& parameter);

}  // namespace oslo
