#include "parallelizers/pipeline/run/caller_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

#include "mpu/group/rank_check.h"
#include "parallelizers/memory/saved_tensors.h"

namespace oslo {
namespace {

/// The stream that work on the current device goes to; none without a GPU.
std::optional<c10::Stream> current_stream() {
  if (!at::hasCUDA()) return std::nullopt;
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  return device.getStream(device.getDevice());
}

/// While it lives an autocast region inside ends without forgetting what the one around it cast.
class InsideAutocast {
 public:
  InsideAutocast() { at::autocast::increment_nesting(); }
  ~InsideAutocast() { at::autocast::decrement_nesting(); }
  InsideAutocast(const InsideAutocast&) = delete;
  InsideAutocast& operator=(const InsideAutocast&) = delete;
};

}  // namespace

std::function<void()> with_state_of_this_thread(std::function<void()> call) {
  const SavedTensorScope* const saved = SavedTensorScope::current();
  const PackSavedTensor pack = saved != nullptr ? saved->pack() : PackSavedTensor();
  return [call = std::move(call), state = at::ThreadLocalState(), threads = at::get_num_threads(),
          caches = at::autocast::is_autocast_cache_enabled(), stream = current_stream(), pack,
          checks = checks_ranks()] {
    const at::ThreadLocalStateGuard state_guard(state);
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    at::autocast::set_autocast_cache_enabled(caches);
    const InsideAutocast inside;
    const c10::OptionalStreamGuard stream_guard(stream);
    const RankCheckScope checked(checks);
    std::optional<SavedTensorScope> scope;
    if (pack) scope.emplace(pack);
    call();
  };
}

}  // namespace oslo
