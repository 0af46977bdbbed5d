#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// Lets a parameter that dies let go of what is remembered of it (tensor_tag.h). LibTorch does not:
/// of a tensor that weak references still point to it releases memory and place in the graph, and
/// keeps the rest until the last of these is gone. The accumulator that a mark holds has such a
/// reference, so that mark, mesh and groups would hold each other for ever. Once for a tensor,
/// whatever is remembered of it later; further calls do nothing.
void end_tag_with(const at::Tensor& parameter);

}  // namespace oslo
