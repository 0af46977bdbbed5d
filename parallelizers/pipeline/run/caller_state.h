#pragma once

#include <functional>

namespace oslo {

/// `call`, as this thread would run it now, for another thread: modes of gradients, inference and
/// autocast, the number of threads of operators, the current device and stream, hooks on saved
/// tensors (SavedTensorScope), and whether ranks are compared (RankCheckScope). The other thread's
/// own state is as before afterwards, but for its number of threads.
std::function<void()> with_state_of_this_thread(std::function<void()> call);

}  // namespace oslo
