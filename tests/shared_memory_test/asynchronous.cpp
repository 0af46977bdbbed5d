#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/backend.h"
#include "tests/shared_memory_test/group_calls.h"
#include "tests/support/shared_memory_group.h"

// The shared memory backend's Work, messages, overlapping groups.
namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

TEST(SharedMemoryWork, FuturesAreDoneWithoutAnybodyWaiting) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    for (const int64_t size : {4, 400'000}) {
      const at::Tensor tensor = at::full({size}, rank + 1.0);
      const auto work = start_all_reduce(group, tensor);
      const auto future = work->getFuture();
      future->wait();
      EXPECT_TRUE(work->isCompleted() && work->isSuccess());
      EXPECT_EQ(first(future->value().toTensorVector().at(0)), 6.0);
      EXPECT_EQ(first(work->result().at(0)), 6.0);
      EXPECT_TRUE(work->wait());
      EXPECT_TRUE(work->getFuture()->completed());
    }
  };
  each_rank(3, body);
}

TEST(SharedMemoryWork, CallbacksMayStartAndAwaitOperations) {
  const auto body = [](SharedMemoryBackend& group, int) {
    const at::Tensor tensor = at::ones({400'000}), next = at::ones({7});
    const auto done = start_all_reduce(group, tensor)
                          ->getFuture()
                          ->then(
                              [&](c10::ivalue::Future&) {
                                start_all_reduce(group, next)->wait();
                                return c10::IValue(first(next));
                              },
                              c10::FloatType::get());
    done->wait();
    EXPECT_EQ(done->value().toDouble(), 2.0);
  };
  each_rank(2, body);
}

TEST(SharedMemoryWork, ManyUnderWayAndDroppedOnes) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<WorkPointer> works;
    for (int i = 0; i < 40; ++i) {
      tensors.push_back(at::full({i % 5 == 0 ? 100'000 : i}, rank + 1.0 * i));
      WorkPointer work = start_all_reduce(group, tensors.back());
      if (i % 3 == 0) works.push_back(work);  // the others are dropped at once
      const bool done = i % 7 != 0 || work->wait(30s);
      EXPECT_TRUE(done);
    }
    for (size_t i = works.size(); i-- > 0;) works[i]->wait();
    barrier(group);  // so are those that nobody waits for
    for (int i = 1; i < 40; ++i) EXPECT_EQ(first(tensors[i]), 2.0 * i + 1) << i;
    EXPECT_EQ(group.getSequenceNumberForGroup(), 41);
  };
  each_rank(2, body);
}

TEST(SharedMemoryWork, NobodyDependsOnAnotherRanksWait) {
  // Rank 0 starts on both groups and waits later; rank 1 finishes one before it begins the other.
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (const int64_t size : {2, 200'000}) {
    const auto errors = on_threads(2, [&](int rank) {
      const auto make = [&](const std::string& name) {
        auto prefix = c10::make_intrusive<c10d::PrefixStore>(c10::str(name, size), store);
        return make_shared_memory_backend(prefix, rank, 2, shm_options(name, 30s));
      };
      const auto a = make("a"), b = make("b");
      const at::Tensor x = at::ones({size}), y = at::ones({size});
      if (rank == 0) {
        const auto first_work = start_all_reduce(*a, x);
        start_all_reduce(*b, y)->wait();
        first_work->wait();
      } else {
        start_all_reduce(*a, x, /*caller_waits=*/true);
        start_all_reduce(*b, y, /*caller_waits=*/true);
      }
      EXPECT_EQ(first(x) + first(y), 4.0);
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
  }
}

TEST(SharedMemoryWork, OverlappingGroupsFromTwoThreadsOfARank) {
  // World of 4; its rows {0, 1}, {2, 3} and its columns {0, 2}, {1, 3}: each rank uses one of each
  // from two threads at once, in an order of its own.
  auto store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = on_threads(4, [&](int rank) {
    const auto make = [&](const std::string& name, int index, int size) {
      auto prefix = c10::make_intrusive<c10d::PrefixStore>(name, store);
      auto options = shm_options(name);
      options->chunk_bytes = 4096;
      return make_shared_memory_backend(prefix, index, size, options);
    };
    const auto row = make(c10::str("row", rank / 2), rank % 2, 2);
    const auto column = make(c10::str("column", rank % 2), rank / 2, 2);
    const auto use = [&](c10d::Backend& group, int other, int seed) {
      std::mt19937 shared(seed), own(seed * 7 + rank);
      std::vector<std::pair<WorkPointer, at::Tensor>> under_way;
      for (int i = 0; i < 150; ++i) {
        const auto size = static_cast<int64_t>(shared() % 4 == 0 ? shared() % 9000 : shared() % 50);
        const at::Tensor tensor = at::full({size + 1}, rank + 10.0);
        under_way.emplace_back(start_all_reduce(group, tensor), tensor);
        while (own() % 3 == 0 && !under_way.empty()) {
          const size_t pick = own() % under_way.size();
          under_way[pick].first->wait();
          EXPECT_EQ(first(under_way[pick].second), 20.0 + rank + other);
          under_way.erase(under_way.begin() + pick);
        }
      }
      for (auto& [work, tensor] : under_way) work->wait();
      for (auto& [work, tensor] : under_way) EXPECT_EQ(first(tensor), 20.0 + rank + other);
    };
    std::thread second([&] { use(*column, (rank + 2) % 4, 100 + rank % 2); });
    use(*row, rank ^ 1, 200 + rank / 2);
    second.join();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(SharedMemoryMessages, MatchByTagInAnyOrderAndBothWaysAtOnce) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    const int other = 1 - rank;
    for (const int64_t size : {0, 1, 1000, 300'000}) {
      // Both send first, more than a channel holds; the receiver asks in reverse order.
      std::vector<WorkPointer> works;
      Tensors received;
      for (int tag = 0; tag < 3; ++tag) {
        Tensors tensors{at::full({size, 2}, 10.0 * tag + rank).t()};
        works.push_back(group.send(tensors, other, tag));
      }
      for (int tag = 2; tag >= 0; --tag) {
        Tensors tensors{at::zeros({2, size})};
        received.push_back(tensors[0]);
        works.push_back(group.recv(tensors, other, tag));
      }
      for (const auto& work : works) work->wait();
      for (int tag = 2; tag >= 0; --tag) {
        EXPECT_TRUE((received[2 - tag] == 10.0 * tag + other).all().item<bool>()) << size;
      }
    }
  };
  each_rank(2, body);
}

// What nobody asks for is kept only up to a limit.
TEST(SharedMemoryMessages, UnaskedOnesAreBounded) {
  for (const int64_t numel : {50, 0}) {
    const auto body = [&](SharedMemoryBackend& group, int rank) {
      std::vector<WorkPointer> works;
      const auto act = [&] {
        for (int tag = 0; rank == 0 && tag <= 1'000; ++tag) {
          Tensors tensors{at::ones({numel})};
          works.push_back(group.send(tensors, 1, tag));
        }
        Tensors tensors{at::ones({numel})};
        works.push_back(group.recv(tensors, 1 - rank, 1'000));
        works.back()->wait();
      };
      EXPECT_THAT(error_of(act), AllOf(HasSubstr("keeps"), HasSubstr("the limit is 20000 bytes")));
    };
    const auto adjust = [](ShmOptions& options, int) { options.aside_bytes = 20'000; };
    EXPECT_THAT(on_group(2, body, adjust), ::testing::Each(::testing::IsEmpty()));
  }
}

TEST(SharedMemoryMessages, OneMayBeLargerThanTheLimit) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    if (rank == 0) {
      Tensors large{at::full({100'000}, 7.0)}, small{at::ones({1})};
      const auto first_work = group.send(large, 1, 0);
      group.send(small, 1, 1)->wait();
      first_work->wait();
    } else {
      Tensors large{at::zeros({100'000})}, small{at::zeros({1})};
      group.recv(small, 0, 1)->wait();
      group.recv(large, 0, 0)->wait();
      EXPECT_EQ(first(large[0]), 7);
    }
  };
  const auto adjust = [](ShmOptions& options, int) { options.aside_bytes = 20'000; };
  EXPECT_THAT(on_group(2, body, adjust), ::testing::Each(::testing::IsEmpty()));
}

TEST(SharedMemoryMessages, FromAnyRankAndWithFutures) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    if (rank == 0) {
      std::vector<int> seen(4);
      for (int i = 1; i < 4; ++i) {
        Tensors tensors{at::zeros({50'000})};
        const auto work = group.recvAnysource(tensors, 5);
        work->getFuture()->waitAndThrow();
        EXPECT_EQ(first(tensors[0]), work->sourceRank());
        ++seen[work->sourceRank()];
      }
      EXPECT_EQ(seen, (std::vector<int>{0, 1, 1, 1}));
    } else {
      Tensors tensors{at::full({50'000}, 1.0 * rank)};
      group.send(tensors, 0, 5)->getFuture()->waitAndThrow();
    }
    barrier(group);
  };
  each_rank(4, body);
}

}  // namespace
}  // namespace oslo::test
