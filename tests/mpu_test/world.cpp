// Exchanges over the store, which lives in rank 0's process.
#include "mpu/world/world.h"

#include <c10/core/AutogradState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "mpu/transport/presence/note.h"
#include "tests/support/error_of.h"

namespace oslo {
namespace {

/// What the two ranks' stores know of each other.
struct Watch {
  std::mutex mutex;
  std::condition_variable changed;
  bool answered = false;         // by rank 0
  bool rank_zero_waits = false;  // after its answer
  bool rank_zero_left = false;
  bool left_while_rank_one_read = false;
};

/// One rank's view of a store. Rank 1 reads rank 0's answer only when rank 0, which has given it,
/// does something else: waits, or has left.
class WatchedStore final : public c10d::Store {
 public:
  WatchedStore(c10::intrusive_ptr<c10d::Store> store, int rank, Watch& watch)
      : store_(std::move(store)), rank_(rank), watch_(watch) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return store_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_->set(key, value);
    const std::lock_guard<std::mutex> lock(watch_.mutex);
    if (rank_ == 0 && key.ends_with("/answer")) watch_.answered = true;
  }
  std::vector<uint8_t> get(const std::string& key) override {
    std::unique_lock<std::mutex> lock(watch_.mutex);
    if (rank_ == 1 && key.ends_with("/answer")) {
      watch_.changed.wait(lock, [&] { return watch_.rank_zero_waits || watch_.rank_zero_left; });
      watch_.left_while_rank_one_read = watch_.rank_zero_left;
    }
    lock.unlock();
    return store_->get(key);
  }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    if (rank_ == 0) {
      const std::lock_guard<std::mutex> lock(watch_.mutex);
      if (watch_.answered) watch_.rank_zero_waits = true;
      watch_.changed.notify_all();
    }
    store_->wait(keys, timeout);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  Watch& watch_;
};

TEST(World, RankZeroStaysUntilAllHaveRead) {
  Watch watch;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const World world =
          World::over_store(c10::make_intrusive<WatchedStore>(store, rank, watch), rank, 2);
      const auto texts = world.exchange("test", std::to_string(rank));
      EXPECT_EQ(texts, (std::vector<std::string>{"0", "1"}));
      const std::lock_guard<std::mutex> lock(watch.mutex);
      if (rank == 0) watch.rank_zero_left = true;
      watch.changed.notify_all();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_TRUE(watch.answered);
  EXPECT_FALSE(watch.left_while_rank_one_read);
}

TEST(World, ExchangesLeaveNoKeysButTheLast) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto keys_after = [&](int exchanges) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        const World world = World::over_store(store, rank, 3);
        for (int i = 0; i < exchanges; ++i) world.exchange("test", "x");
      });
    }
    for (std::thread& rank : ranks) rank.join();
    return store->getNumKeys();
  };
  const int64_t once = keys_after(1);
  EXPECT_EQ(keys_after(5) - once, once - 3);  // three keys count the worlds of each rank
}

/// One rank's view of a store to whose answer somebody else wrote.
class ForgedStore final : public c10d::PrefixStore {
 public:
  ForgedStore(c10::intrusive_ptr<c10d::Store> store, Note answer)
      : c10d::PrefixStore("", std::move(store)), answer_(std::move(answer)) {}
  std::vector<uint8_t> get(const std::string& key) override {
    const auto value = c10d::PrefixStore::get(key);
    return key.ends_with("/answer") ? answer_.bytes() : value;
  }

 private:
  const Note answer_;
};

/// Texts that do not fit into what was sent, or are not one for each rank.
TEST(World, TextsThatSomebodyElseWroteAreRefused) {
  for (const char* text :
       {"3", "3:", ":abc", "x", "-1:abc", "1:a4:abc", "1:a3:abcd", "1:a18446744073709551615:abc",
        "1:a18446744073709551613:abc", "1:a9000000000000000000:abc", "99999999999999999999:abc", "",
        "1:a", "1:a1:b1:c"}) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        c10::intrusive_ptr<c10d::Store> own = c10::make_intrusive<c10d::PrefixStore>("", store);
        const Note answer{Note::Kind::text, 0, 1, text};
        if (rank == 1) own = c10::make_intrusive<ForgedStore>(store, answer);
        const World world = World::over_store(own, rank, 2);
        const auto exchange = [&] { return world.exchange("test", std::to_string(rank)); };
        if (rank == 0) {
          EXPECT_EQ(exchange(), (std::vector<std::string>{"0", "1"}));
          return;
        }
        // It counts no more bytes than there are.
        EXPECT_THAT(test::error_of(exchange),
                    ::testing::ContainsRegex("texts of the ranks, [0-9][0-9]?( bytes| of 2),"))
            << "<" << text << ">";
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

TEST(World, RanksThatAreThreadsKeepBackwardToThemselves) {
  // On a device that several share, one thread would run the backward passes of all of them.
  run_as_threads(2, [](const World&) {
    EXPECT_FALSE(c10::AutogradState::get_tls_state().get_multithreading_enabled());
  });
}

}  // namespace
}  // namespace oslo
