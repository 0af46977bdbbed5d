#include <c10/core/AutogradState.h>

#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mpu/base/error.h"
#include "mpu/base/told_error.h"
#include "mpu/transport/backends/flight_recorder.h"
#include "mpu/world/world.h"

namespace oslo {
namespace {

/// Autograd has one thread for each device of the process. Ranks that share a GPU would share it
/// too, and the first of them to wait there for another rank would wait forever.
void keep_backward_in_this_thread() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

}  // namespace

void run_as_threads(int size, const std::function<void(World)>& body,
                    std::chrono::milliseconds timeout) {
  switch_off_flight_recorder();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::optional<ToldError> failure;
  const auto report = [&](const World& world, const ToldError& error) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      // A rank that fails wakes the others before it gets here, so that they may come first.
      const bool cause = error.kind != ErrorKind::peer;
      if (!failure || (failure->kind == ErrorKind::peer && cause)) {
        failure = ToldError{error.kind, c10::str("rank ", world.rank(), ": ", error.message)};
      }
    }
    world.report_failure(error.message);
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      keep_backward_in_this_thread();
      const World world = World::over_store(store, rank, size, timeout);
      // What `body` made is gone when it has thrown: closing its connections is what wakes the
      // ranks that wait for this one in a collective.
      try {
        body(world);
      } catch (const std::exception& error) {
        report(world, ToldError::of(error));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (failure) fail_as(failure->kind, failure->message);
}

}  // namespace oslo
