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
#include "parallelizers/placement/door/autocast_state.h"

namespace oslo {
namespace {

/// The stream that work on the current device goes to; none without a GPU.
std::optional<c10::Stream> current_stream() {
  if (!at::hasCUDA()) return std::nullopt;
  const c10::impl::VirtualGuardImpl device(c10::DeviceType::CUDA);
  return device.getStream(device.getDevice());
}

/// Whether a guard of autocast is around the call.
bool is_guarded() {
  return at::autocast::is_autocast_enabled(at::kCPU) ||
         at::autocast::is_autocast_enabled(at::kCUDA) || is_within_autocast_guard();
}

/// While it lives the thread has the caller's types and guard, but keeps no casts: one that another
/// micro-batch made would be no use of the parameter by this one.
class InsideAutocast {
 public:
  InsideAutocast(const AutocastTypes& types, bool guarded) : guarded_(guarded) {
    types.set();
    if (guarded_) at::autocast::increment_nesting();
  }
  ~InsideAutocast() {
    if (guarded_) at::autocast::decrement_nesting();
    before_.set();
  }
  InsideAutocast(const InsideAutocast&) = delete;
  InsideAutocast& operator=(const InsideAutocast&) = delete;

 private:
  const AutocastTypes before_;
  const NoCastCache no_cast_cache_;
  const bool guarded_;
};

}  // namespace

std::function<void()> with_state_of_this_thread(std::function<void()> call) {
  const SavedTensorScope* const saved = SavedTensorScope::current();
  const PackSavedTensor pack = saved != nullptr ? saved->pack() : PackSavedTensor();
  return [call = std::move(call), state = at::ThreadLocalState(), threads = at::get_num_threads(),
          types = AutocastTypes(), guarded = is_guarded(), stream = current_stream(), pack,
          checks = checks_ranks()] {
    const at::ThreadLocalStateGuard state_guard(state);
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    const InsideAutocast inside(types, guarded);
    const c10::OptionalStreamGuard stream_guard(stream);
    const RankCheckScope checked(checks);
    std::optional<SavedTensorScope> scope;
    if (pack) scope.emplace(pack);
    call();
  };
}

}  // namespace oslo
