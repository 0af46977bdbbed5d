#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "mpu/error.h"
#include "mpu/transport/shared_memory/backend.h"
#include "tests/support/shared_memory_group.h"

// The shared memory backend's Work, messages, overlapping groups, and how it fails.
namespace oslo {
namespace {

using ::oslo::test::each_rank;
using ::oslo::test::on_group;
using ::oslo::test::on_threads;
using ::oslo::test::shm_options;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

WorkPointer start_all_reduce(c10d::Backend& group, const at::Tensor& tensor,
                             bool caller_waits = false) {
  Tensors tensors{tensor};
  c10d::AllreduceOptions options;
  options.asyncOp = !caller_waits;
  return group.allreduce(tensors, options);
}

void barrier(c10d::Backend& group) {
  group.barrier({})->wait();
}

/// What `work` ends with.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

float first(const at::Tensor& tensor) {
  return tensor.flatten()[0].item<float>();
}

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
    const auto adjust = [](test::ShmOptions& options, int) { options.aside_bytes = 20'000; };
    EXPECT_THAT(test::on_group(2, body, adjust), ::testing::Each(::testing::IsEmpty()));
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
  const auto adjust = [](test::ShmOptions& options, int) { options.aside_bytes = 20'000; };
  EXPECT_THAT(test::on_group(2, body, adjust), ::testing::Each(::testing::IsEmpty()));
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
}  // namespace oslo
