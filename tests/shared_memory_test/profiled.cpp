#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "mpu/transport/shared_memory/backend.h"
#include "tests/support/shared_memory_group.h"

// What LibTorch's profiler sees of collectives: each once, on the thread that does it.
namespace oslo {
namespace {

struct Range {
  std::string name;
  uint64_t thread = 0;
};

/// Ranges that any thread of the process opens, until it goes out of scope.
class RecordedRanges {
 public:
  RecordedRanges() {
    list().clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&begin).scopes({at::RecordScope::USER_SCOPE}));
  }
  ~RecordedRanges() { at::removeCallback(handle_); }
  RecordedRanges(const RecordedRanges&) = delete;
  RecordedRanges& operator=(const RecordedRanges&) = delete;

  static std::vector<Range> ranges() {
    const std::lock_guard<std::mutex> lock(mutex());
    return list();
  }

 private:
  static std::vector<Range>& list() {
    static std::vector<Range> ranges;
    return ranges;
  }
  static std::mutex& mutex() {
    static std::mutex own;
    return own;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const std::lock_guard<std::mutex> lock(mutex());
    list().push_back({function.name(), at::RecordFunction::currentThreadId()});
    return nullptr;
  }

  at::CallbackHandle handle_;
};

TEST(SharedMemoryProfile, HasEachCollectiveOnTheThreadThatDoesIt) {
  const RecordedRanges recorded;
  std::mutex mutex;
  std::set<uint64_t> callers;
  const auto body = [&](SharedMemoryBackend& group, int) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      callers.insert(at::RecordFunction::currentThreadId());
    }
    std::vector<at::Tensor> several_rounds{at::ones({4'000})};
    c10d::AllreduceOptions options;
    options.asyncOp = true;
    group.allreduce(several_rounds, options)->getFuture()->wait();

    at::Tensor part = at::ones({3}), whole = at::empty({6});
    c10d::AllgatherOptions awaited;
    awaited.asyncOp = false;
    group._allgather_base(whole, part, awaited)->wait();
  };
  test::each_rank(2, body);

  std::multiset<std::string> by_callers, by_others;
  for (const Range& range : RecordedRanges::ranges()) {
    (callers.contains(range.thread) ? by_callers : by_others).insert(range.name);
  }
  EXPECT_THAT(by_callers, ::testing::ElementsAre("shm:all_gather", "shm:all_gather"));
  EXPECT_THAT(by_others, ::testing::ElementsAre("shm:all_reduce", "shm:all_reduce"));
}

}  // namespace
}  // namespace oslo
