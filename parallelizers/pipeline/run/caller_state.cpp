#include "parallelizers/pipeline/run/caller_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

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

constexpr std::array<at::DeviceType, 2> kAutocastDevices = {at::kCPU, at::kCUDA};

/// What LibTorch's own state of a thread leaves out of autocast's.
class AutocastState {
 public:
  AutocastState() {
    for (const at::DeviceType device : kAutocastDevices) {
      types_.push_back(at::autocast::get_autocast_dtype(device));
      guarded_ |= at::autocast::is_autocast_enabled(device);
    }
    guarded_ |= at::autocast::increment_nesting() > 1;
    at::autocast::decrement_nesting();
  }

  const std::vector<at::ScalarType>& types() const { return types_; }
  /// Whether a guard is around the call: of several that nest the outermost forgets what was cast.
  bool guarded() const { return guarded_; }

 private:
  bool guarded_ = false;
  std::vector<at::ScalarType> types_;
};

/// While it lives the thread has that state, but keeps no casts: autocast's cache is one for the
/// process, and a cast that another micro-batch made would be no use of the parameter by this one.
class InsideAutocast {
 public:
  explicit InsideAutocast(const AutocastState& state) : guarded_(state.guarded()) {
    at::autocast::set_autocast_cache_enabled(false);
    set_types(state.types());
    if (guarded_) at::autocast::increment_nesting();
  }
  ~InsideAutocast() {
    if (guarded_) at::autocast::decrement_nesting();
    set_types(before_.types());
    at::autocast::set_autocast_cache_enabled(caches_before_);
  }
  InsideAutocast(const InsideAutocast&) = delete;
  InsideAutocast& operator=(const InsideAutocast&) = delete;

 private:
  static void set_types(const std::vector<at::ScalarType>& types) {
    for (size_t i = 0; i < types.size(); ++i) {
      at::autocast::set_autocast_dtype(kAutocastDevices[i], types[i]);
    }
  }

  const AutocastState before_;
  const bool caches_before_ = at::autocast::is_autocast_cache_enabled();
  const bool guarded_;
};

}  // namespace

std::function<void()> with_state_of_this_thread(std::function<void()> call) {
  const SavedTensorScope* const saved = SavedTensorScope::current();
  const PackSavedTensor pack = saved != nullptr ? saved->pack() : PackSavedTensor();
  return [call = std::move(call), state = at::ThreadLocalState(), threads = at::get_num_threads(),
          autocast = AutocastState(), stream = current_stream(), pack, checks = checks_ranks()] {
    const at::ThreadLocalStateGuard state_guard(state);
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    const InsideAutocast inside(autocast);
    const c10::OptionalStreamGuard stream_guard(stream);
    const RankCheckScope checked(checks);
    std::optional<SavedTensorScope> scope;
    if (pack) scope.emplace(pack);
    call();
  };
}

}  // namespace oslo
