#pragma once

#include <functional>

namespace oslo::test {

/// Operators of the simulated device other than copies: the host waits for what the current stream
/// holds, and for nothing else, and computes what the operator says. What was to be ordered before
/// it, and is not, has not happened. Calls `then` after each of them, on the thread that ran it;
/// empty: nothing.
void after_operators(std::function<void()> then);

}  // namespace oslo::test
