// Waiting for a key of the store while looking at other ranks.
#include "mpu/transport/presence/watched_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "mpu/base/error.h"
#include "mpu/base/text.h"

namespace oslo {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(WatchedStore, AWaitAsksOnlyWhileTheKeyIsNotThere) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->set("there", std::vector<uint8_t>());
  EXPECT_TRUE(wait_watching(*store, {"there"}, 1min, []() -> bool { fail("nobody asks"); }));
  int asked = 0;
  // It comes after two looks.
  EXPECT_TRUE(wait_watching(*store, {"there", "late"}, 1min, [&] {
    if (++asked == 2) store->set("late", std::vector<uint8_t>());
    return false;
  }));
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(wait_watching(*store, {"never"}, 1min, [&] { return ++asked == 4; }));
  EXPECT_EQ(asked, 4);
  EXPECT_THROW(wait_watching(*store, {"never"}, 1min, []() -> bool { fail("rank 3 has ended"); }),
               Error);
}

TEST(WatchedStore, AWaitEndsWithTheLimitWhichItNames) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> asked = 0;
  for (const auto limit : {kLookEvery / 5, 2 * kLookEvery + 1ms}) {
    try {
      wait_watching(*store, {"never", "late"}, limit, [&] { return ++asked == 0; });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::DistStoreError& error) {
      if (limit > kLookEvery) {
        EXPECT_THAT(message_of(error), HasSubstr(c10::str("wait timeout after ", limit.count(),
                                                          "ms, keys: never, late")));
      }
    }
  }
  EXPECT_GT(asked, 0);
}

TEST(WatchedStore, WithoutProcessesToLookAtItIsThePrefixesStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  WatchedStore watched("group", store, nullptr, {0, 1});
  watched.set("key", std::vector<uint8_t>{1, 2});
  EXPECT_EQ(store->get("group/key"), (std::vector<uint8_t>{1, 2}));
  EXPECT_EQ(watched.get("key"), (std::vector<uint8_t>{1, 2}));
  EXPECT_EQ(watched.multiGet({"key"}).size(), 1U);
  EXPECT_THROW(watched.wait({"never"}, 20ms), c10::DistStoreError);
}

}  // namespace
}  // namespace oslo
