#pragma once

#include <functional>

namespace oslo {

/// Of the backward pass that this thread runs a node of: whether it is one of autograd::grad, where
/// nothing comes to `.grad`.
bool pass_hands_gradients_out();

/// Has it call `then` when it has run; not where it throws. Callbacks run in the order in which
/// they were queued.
void at_end_of_pass(std::function<void()> then);

}  // namespace oslo
