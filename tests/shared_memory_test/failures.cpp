// How the shared memory backend fails: on every rank that it concerns, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <limits>
#include <thread>

#include "mpu/base/error.h"
#include "mpu/transport/shared_memory/segment/signals.h"
#include "tests/shared_memory_test/group_calls.h"
#include "tests/support/shared_memory_group.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(SharedMemoryFailures, RanksThatDoDifferentThingsAllRefuse) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    barrier(group);
    const auto act = [&] {
      start_all_reduce(group, rank == 1 ? at::ones({3}) : at::ones({4}))->wait();
    };
    const std::string error = error_of(act);
    EXPECT_THAT(error, AllOf(HasSubstr("did different things"), HasSubstr("all_reduce number 2"),
                             HasSubstr("12 bytes of Float"), HasSubstr("16 bytes of Float"),
                             HasSubstr("rank 1"), HasSubstr("group test")));
    EXPECT_EQ(error_of([&] { barrier(group); }), error) << "a failed group stays failed";
    Tensors tensors{at::ones({1})};
    EXPECT_EQ(error_of([&] { group.send(tensors, 0, 0)->wait(); }), error);
  };
  each_rank(3, body);
  const auto other = [](SharedMemoryBackend& group, int rank) {
    Tensors tensors{at::ones({4}, rank == 0 ? at::kFloat : at::kInt)};
    const auto act = [&] {
      if (rank == 0) return barrier(group);
      group.broadcast(tensors, {})->wait();
    };
    EXPECT_THAT(error_of(act),
                AllOf(HasSubstr("barrier number 1"), HasSubstr("broadcast number 1")));
  };
  each_rank(2, other);
}

TEST(SharedMemoryFailures, ARankThatLeaves) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    barrier(group);
    if (rank == 1) return;
    const auto act = [&] { start_all_reduce(group, at::ones({100'000}))->wait(); };
    EXPECT_THAT(error_of(act), AllOf(HasSubstr("rank 1 has left the group"),
                                     HasSubstr("all_reduce number 2"), HasSubstr("group test")));
  };
  each_rank(3, body);
  const auto messages = [](SharedMemoryBackend& group, int rank) {
    Tensors tensors{at::ones({1})};
    if (rank == 1) {
      group.send(tensors, 0, 1);
      return;
    }
    group.recv(tensors, 1, 1)->wait();
    EXPECT_THAT(error_of([&] { group.recv(tensors, 1, 1)->wait(); }),
                HasSubstr("rank 1 has left the group"));
  };
  each_rank(2, messages);
}

TEST(SharedMemoryFailures, ALateRank) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    barrier(group);
    if (rank == 0) {
      group.setTimeout(60ms);
      EXPECT_THAT(error_of([&] { barrier(group); }),
                  AllOf(HasSubstr("barrier number 2"), HasSubstr("rank 0 waited 60 ms for rank 1"),
                        HasSubstr("group test")));
      return;
    }
    // Waits for the news without taking part; then it is too late.
    Tensors tensors{at::ones({1})};
    const std::string news = error_of([&] { group.recv(tensors, 0, 0)->wait(); });
    EXPECT_THAT(news, HasSubstr("waited 60 ms"));
    EXPECT_THAT(error_of([&] { barrier(group); }), HasSubstr("waited 60 ms"));
  };
  each_rank(2, body);
}

TEST(SharedMemoryFailures, AnImpatientWaitBreaksNothing) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    Tensors tensors{at::full({3}, 1.0 * rank)};
    if (rank == 0) {
      const auto work = group.recv(tensors, 1, 0);
      EXPECT_THAT(error_of([&] { work->wait(1ms); }), HasSubstr("waited 1 ms"));
      const auto all = start_all_reduce(group, at::ones({400'000}));
      EXPECT_THAT(error_of([&] { all->wait(1ms); }), HasSubstr("is not done after 1 ms"));
      Tensors go{at::ones({1})};
      group.send(go, 1, 9)->wait();
      work->wait();
      all->wait();
      EXPECT_EQ(first(tensors[0]), 1.0);
    } else {
      Tensors go{at::ones({1})};
      group.recv(go, 0, 9)->wait();
      group.send(tensors, 0, 0)->wait();
      start_all_reduce(group, at::ones({400'000}))->wait();
    }
    barrier(group);
  };
  each_rank(2, body);
}

TEST(SharedMemoryFailures, AnImpatientWaitAmongOthersMessages) {
  constexpr int kMost = 100'000;
  std::atomic<bool> enough{false};
  const auto body = [&](SharedMemoryBackend& group, int rank) {
    if (rank == 1) {
      int sent = 0;
      for (bool last = false; !last;) {
        last = enough || ++sent == kMost;
        Tensors tensors{at::full({1}, last ? 1.0 : 0.0)};
        group.send(tensors, 0, 8)->wait();
      }
      EXPECT_LT(sent, kMost) << "the wait ended only when the other messages did";
      barrier(group);
      return;
    }
    std::thread others([&] {
      Tensors tensors{at::zeros({1})};
      while (first(tensors[0]) == 0) group.recv(tensors, 1, 8)->wait();
    });
    Tensors tensors{at::zeros({1})};
    const auto work = group.recv(tensors, 1, 7);
    EXPECT_THAT(error_of([&] { work->wait(1ms); }), HasSubstr("waited 1 ms"));
    enough = true;
    others.join();
    barrier(group);
  };
  each_rank(2, body);
}

/// Beside programs that compute, each yield takes their time slices: whoever yields looks up in
/// time.
TEST(SharedMemoryFailures, AWaitThatStaysAwakeEndsWhateverItsYieldsTake) {
  shared_memory::Signal signal{};
  shared_memory::Patience patience;
  patience.yields = std::numeric_limits<int>::max();
  EXPECT_THAT(error_of([&] {
                shared_memory::await(
                    signal, patience, [](uint32_t value) { return value != 0; },
                    [](bool) { fail("a peer has gone"); });
              }),
              HasSubstr("a peer has gone"));
}

TEST(SharedMemoryFailures, AbortReachesThoseWhoSleep) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    if (rank == 0) {
      group.abort();
    } else {
      EXPECT_THAT(error_of([&] { barrier(group); }), HasSubstr("rank 0 has aborted group test"));
    }
  };
  each_rank(3, body);
}

TEST(SharedMemoryFailures, WhatWasSentBeforeAnAbortIsReceived) {
  std::latch aborted(1);
  const auto body = [&](SharedMemoryBackend& group, int rank) {
    if (rank == 0) {
      for (const float value : {3.F, 5.F}) {
        Tensors sent{at::full({7}, value)};
        group.send(sent, 1, 9)->wait();
      }
      group.abort();
      aborted.count_down();
      return;
    }
    aborted.wait();
    for (const float value : {3.F, 5.F}) {
      Tensors received{at::zeros({7})};
      group.recv(received, 0, 9)->wait();
      EXPECT_EQ(first(received[0]), value);
    }
    Tensors received{at::zeros({7})};
    EXPECT_THAT(error_of([&] { group.recv(received, 0, 9)->wait(); }),
                HasSubstr("rank 0 has aborted group test"));
    EXPECT_THAT(error_of([&] { group.send(received, 0, 9)->wait(); }),
                HasSubstr("rank 0 has aborted group test"));
  };
  each_rank(2, body);
}

TEST(SharedMemoryFailures, HostsThatDifferAndWrongArguments) {
  const auto errors = on_group(
      3, [](SharedMemoryBackend&, int) {},
      [](auto& options, int rank) { options.host = rank == 2 ? "b" : "a"; });
  EXPECT_THAT(errors, Each(HasSubstr("ranks 0 and 2 of group test cannot share memory: they are on "
                                     "different hosts")));
  EXPECT_THAT(on_group(
                  2, [](SharedMemoryBackend&, int) {},
                  [](auto& options, int) { options.chunk_bytes = size_t{1} << 60; }),
              Each(HasSubstr("shared memory cannot be")));
  EXPECT_THAT(on_group(
                  1, [](SharedMemoryBackend&, int) {},
                  [](auto& options, int) { options.chunk_bytes = 100; }),
              Each(HasSubstr("chunk_bytes is 100")));
  const auto body = [](SharedMemoryBackend& group, int) {
    const auto reduce = [&](const at::Tensor& tensor, c10d::ReduceOp::RedOpType op) {
      Tensors tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      return error_of([&] { group.allreduce(tensors, options)->wait(); });
    };
    EXPECT_THAT(reduce(at::ones({2}), c10d::ReduceOp::BXOR), HasSubstr("xor of tensors of Float"));
    EXPECT_THAT(reduce(at::empty({2}, at::kMeta), c10d::ReduceOp::SUM), HasSubstr("on meta"));
    barrier(group);  // all refused alike
  };
  each_rank(2, body);
}

TEST(SharedMemoryFailures, ARankThatRefusesAloneAndGoesOn) {
  const auto body = [](SharedMemoryBackend& group, int rank) {
    barrier(group);
    if (rank == 1) {
      EXPECT_THAT(error_of([&] { start_all_reduce(group, at::empty({4}, at::kMeta)); }),
                  HasSubstr("on meta"));
    }
    // The first of rank 0's, the second of rank 1's: they must not meet.
    EXPECT_THAT(error_of([&] { start_all_reduce(group, at::ones({4}))->wait(); }),
                AllOf(HasSubstr("did different things"), HasSubstr("all_reduce number 2"),
                      HasSubstr("all_reduce number 3")));
  };
  each_rank(2, body);
}

}  // namespace
}  // namespace oslo::test
