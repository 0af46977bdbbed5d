#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace oslo {

/// How many tensors beside `tensor`, which is marked, carry its mark: gradients, an optimizer's
/// states, copies. On a rank that does not hold the tensor these are the shapes of such.
int64_t others_with_mark_of(const at::Tensor& tensor);

/// Whether a graph that is still alive, or an accumulator hook, waits for gradients of a marked
/// parameter; or tensors beside its gradient and states `beside` have marks of their own that say
/// what they belong to, as those of followed parameters have.
bool awaits_gradients(const at::Tensor& tensor, const std::vector<at::Tensor>& beside);

/// Makes a marked tensor an ordinary one, in place: it keeps its identity and whether it requires
/// gradients, and takes over the memory of `whole`, an ordinary tensor that nobody else writes. Its
/// gradient is left as it is.
void unmark(const at::Tensor& tensor, const at::Tensor& whole);

}  // namespace oslo
