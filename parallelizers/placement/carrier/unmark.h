#pragma once

#include <ATen/core/Tensor.h>

namespace oslo {

/// How many tensors beside `tensor`, which is marked, carry its mark: gradients, an optimizer's
/// states, copies. On a rank that does not hold the tensor these are the shapes of such.
int64_t others_with_mark_of(const at::Tensor& tensor);

/// Whether a graph that is still alive, or an accumulator hook, waits for gradients of a marked
/// parameter.
bool awaits_gradients(const at::Tensor& tensor);

/// Makes a marked tensor an ordinary one, in place: it keeps its identity and whether it requires
/// gradients, and takes over the memory of `whole`, an ordinary tensor that nobody else writes. Its
/// gradient is left as it is.
void unmark(const at::Tensor& tensor, const at::Tensor& whole);

}  // namespace oslo
