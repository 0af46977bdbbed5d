#pragma once

#include "parallelizers/placement/engine/call.h"

namespace oslo {

// Between the steps of a model on pipeline stages a program may look at its gradients: a norm by
// hand, whether all of them are finite. A rank has those of its own stages alone, and takes a
// number of them for the model's.

/// Whether the call computes from gradients, or from what the program computed from them, outside a
/// step. Throws, naming the fix, where it reads elements of that: each rank would read another
/// number; and where it draws, which the ranks of other stages do not. (What stays a tensor, and
/// goes into gradients of the same stage, is right.)
bool computes_from_gradients(const Call& call);

/// What such a call returned is of gradients as well.
void note_from_gradients(const Call& call);

/// Where `tensor` is a gradient of a stage, or was computed from some, so is `same`, another tensor
/// for the same value.
void note_same(const at::Tensor& tensor, const at::Tensor& same);

}  // namespace oslo
