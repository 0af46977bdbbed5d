#include <c10/util/Exception.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mpu/error.h"
#include "mpu/reported_failure.h"
#include "mpu/world.h"

namespace oslo {
namespace {

/// LibTorch's flight recorder is one for the process and not safe for several groups of one process
/// at once (a crash in recordWithResetEnabled); ranks as threads are just that.
void switch_off_flight_recorder() { setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1); }

}  // namespace

void run_as_threads(int size, const std::function<void(World)>& body,
                    std::chrono::milliseconds timeout) {
  switch_off_flight_recorder();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::string first_failure;
  const auto report = [&](int rank, const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!first_failure.empty()) return;
    first_failure = c10::str("rank ", rank, ": ", what);
    report_failure(*store, c10::str("rank ", rank, " failed: ", what));
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      // Whatever `body` throws must not outlive its World: closing its connections is what wakes
      // the ranks that wait for it.
      try {
        body(World::over_store(store, rank, size, timeout));
      } catch (const c10::Error& error) {
        report(rank, error.what_without_backtrace());
      } catch (const std::exception& error) {
        report(rank, error.what());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (!first_failure.empty()) fail(first_failure);
}

}  // namespace oslo
