// All go on, or all throw; what that costs, and who is named when somebody does not come.
#include "mpu/world/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/grid/mpu.h"
#include "mpu/group/group_agreement.h"
#include "tests/support/errors_of.h"

namespace oslo {
namespace {

using namespace std::chrono_literals;
using test::errors_of;
using ::testing::Each;
using ::testing::HasSubstr;

/// Counts what all ranks ask of a store.
class CountingStore final : public c10d::Store {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  int calls() const { return calls_; }

  c10::intrusive_ptr<c10d::Store> clone() override { return store_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++calls_;
    store_->set(key, value);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& value) override {
    ++calls_;
    return store_->compareSet(key, expected, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++calls_;
    return store_->get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    ++calls_;
    return store_->multiGet(keys);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++calls_;
    return store_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    ++calls_;
    return store_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++calls_;
    return store_->check(keys);
  }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    ++calls_;
    store_->wait(keys, timeout);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<int> calls_{0};
};

/// What the ranks throw, each a thread over one store, those not in `absent`.
std::vector<std::string> errors_over(const c10::intrusive_ptr<c10d::Store>& store, int size,
                                     const std::function<void(World)>& body,
                                     std::chrono::milliseconds timeout = 1min,
                                     const std::vector<int>& absent = {}) {
  std::vector<std::string> errors(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
    ranks.emplace_back([&, rank] {
      const World world = World::over_store(store, rank, size, timeout);
      try {
        body(world);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

/// Store calls that `body` takes, all ranks together.
int calls_of(int size, const std::function<void(World)>& body) {
  const auto store = c10::make_intrusive<CountingStore>(c10::make_intrusive<c10d::HashStore>());
  EXPECT_THAT(errors_over(store, size, body), Each(std::string()));
  return store->calls() - size;  // each world counts itself
}

TEST(Agreement, TakesFiveStoreCallsARank) {
  const auto same = [](World world) { agree_on_text(world, "t", "text", "fix"); };
  const auto fine = [](World world) { agree_on_success(world, "t", [] {}); };
  const auto all = [](World world) { world.exchange("t", std::to_string(world.rank())); };
  for (const int size : {2, 3, 7, 12}) {
    const int expected = 5 * (size - 1) + 10;
    EXPECT_EQ(calls_of(size, same), expected) << size;
    EXPECT_EQ(calls_of(size, fine), expected) << size;
    EXPECT_EQ(calls_of(size, all), expected) << size;
    EXPECT_EQ(calls_of(size, [](World world) { world.barrier(); }), expected) << size;
  }
  EXPECT_EQ(calls_of(1, same), 0);
  EXPECT_EQ(calls_of(1, all), 0);
}

TEST(Agreement, GroupsMeetAtTheSamePrice) {
  const auto make = [](World world) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
    world.make_group("all", ranks, Transport::shared_memory);
  };
  // What the memory itself is agreed on by is linear as well.
  const int three = calls_of(3, make), six = calls_of(6, make), nine = calls_of(9, make);
  EXPECT_EQ(nine - six, six - three);
}

TEST(Agreement, EveryRankThrowsWhatTheFirstThatFailedSays) {
  const auto errors = errors_of(5, [](World world) {
    agree_on_success(world, "t", [&] {
      if (world.rank() == 2 || world.rank() == 4) fail("rank's own, ", world.rank());
    });
  });
  EXPECT_THAT(errors, Each(std::string("rank 2: rank's own, 2")));
  EXPECT_THAT(errors_of(3, [](World world) { agree_on_success(world, "t", [] { fail("same"); }); }),
              Each(std::string("same")));
}

TEST(Agreement, ResultsAreComparedAndRankZerosIsTold) {
  run_as_threads(3, [](World world) {
    EXPECT_EQ(result_of_first(world, "t", [&] { return c10::str("from ", world.rank()); }),
              "from 0");
  });
  EXPECT_THAT(errors_of(3,
                        [](World world) {
                          agree_on_result(
                              world, "t", [&] { return c10::str(world.rank() / 2); }, "part ways");
                        }),
              Each(std::string("rank 2 and rank 0 part ways")));
}

TEST(Agreement, TextsAreComparedInsideTheirGroups) {
  const auto compare = [](World world, std::vector<std::string> texts,
                          std::vector<std::vector<int>> groups) {
    agree_on_text(world, "the text", texts[world.rank()], "make it one", groups);
  };
  EXPECT_THAT(errors_of(4,
                        [&](World w) {
                          compare(w, {"a", "b", "a", "b"}, {{0, 2}, {1, 3}});
                        }),
              Each(std::string()));
  EXPECT_THAT(
      errors_of(4,
                [&](World w) {
                  compare(w, {"a", "b\nc\nx", "a", "b\nd"}, {{0, 2}, {1, 3}});
                }),
      Each(std::string("the text differs between ranks: rank 1 has c, rank 3 has d; make it one")));
  EXPECT_THAT(errors_of(2,
                        [&](World w) {
                          compare(w, {"a\nb", "a"}, {});
                        }),
              Each(HasSubstr("rank 0 has b, rank 1 has (nothing)")));
}

TEST(Agreement, ARankThatNeverComesIsNamedWithTheTimeWaited) {
  for (const int missing : {0, 2}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto errors = errors_over(
        store, 4, [](World world) { agree_on_success(world, "the topic", [] {}); }, 2s, {missing});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == missing) continue;
      EXPECT_THAT(errors[rank], HasSubstr(c10::str("rank ", rank, " waited for rank ", missing,
                                                   " (the topic) for up to 2 s; it has ended")));
    }
  }
}

TEST(Agreement, ARankThatComesTooLateIsToldSo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto meet = [](World world) { world.barrier(); };
  errors_over(store, 3, meet, 100ms, {1});
  const auto late = errors_over(store, 3, meet, 100ms, {0, 2});
  EXPECT_THAT(late[1], HasSubstr("rank 1 came too late (barrier)"));
}

// Rank 2 gives up, rank 3 never comes: nobody waits for rank 3.
TEST(Agreement, ARankThatGaveUpEndsTheWaitForOthers) {
  for (const int gives_up : {0, 2}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto errors = errors_over(store, 4,
                                    [&](World world) {
                                      if (world.rank() == gives_up)
                                        return world.report_failure("no such file");
                                      world.barrier();
                                    },
                                    24h, {3});
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == gives_up) continue;
      EXPECT_EQ(errors[rank], c10::str("rank ", rank, " waited for rank ", gives_up,
                                       " (barrier), but rank ", gives_up, " failed: no such file"));
    }
  }
}

TEST(Agreement, RanksOfAGroupCompareByCollectives) {
  const auto compare = [](World world, const std::string& text) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(world.size()));
    agree_on_text(*mpu.tensor_group(), text, [](const Disagreement& seen) {
      return c10::str(seen.rank, ": ", seen.line, " not ", seen.first_line);
    });
  };
  EXPECT_THAT(errors_of(3, [&](World world) { compare(world, "a"); }), Each(std::string()));
  EXPECT_THAT(errors_of(3, [&](World world) { compare(world, world.rank() < 2 ? "a\nb" : "a"); }),
              Each(std::string("2: (nothing) not b")));
}

// Of each group the last rank differs, or fails: errors have its number in the world.
TEST(Agreement, RanksOfAGroupAreToldByTheirNumbersInTheWorld) {
  for (const bool fails : {false, true}) {
    const auto errors = errors_of(4, [&](World world) {
      const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
      const bool other = world.rank() % 2 == 1;
      if (fails) {
        return agree_on_success(*mpu.tensor_group(), [&] {
          if (other) fail("no room");
        });
      }
      agree_on_text(*mpu.tensor_group(), other ? "b" : "a", [](const Disagreement& seen) {
        return c10::str(seen.rank, " differs from ", seen.first);
      });
    });
    for (int rank = 0; rank < 4; ++rank) {
      const int first = rank / 2 * 2;
      EXPECT_EQ(errors[rank], fails ? c10::str("rank ", first + 1, ": no room")
                                    : c10::str(first + 1, " differs from ", first));
    }
  }
}

}  // namespace
}  // namespace oslo
