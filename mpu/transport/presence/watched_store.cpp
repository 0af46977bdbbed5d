#include "mpu/transport/presence/watched_store.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/presence/presence.h"

namespace oslo {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {
/// Between two questions whether a key is there: as long as it was waited for before, up to this.
constexpr milliseconds kLongestPause{20};
}  // namespace

bool wait_watching(c10d::Store& store, const std::vector<std::string>& keys, milliseconds limit,
                   const std::function<bool()>& stop) {
  const auto end = Clock::now() + limit;
  auto look = Clock::now() + kLookEvery;
  milliseconds pause{1};
  while (!store.check(keys)) {
    const auto now = Clock::now();
    if (now >= end) {
      C10_THROW_ERROR(DistStoreError, c10::str("wait timeout after ", limit.count(),
                                               "ms, keys: ", c10::Join(", ", keys)));
    }
    if (now >= look) {
      if (stop()) return false;
      look = now + kLookEvery;
    }
    // Nobody wakes this. LibTorch's own wait writes warnings whenever its time is over.
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

WatchedStore::WatchedStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store,
                           std::shared_ptr<Presence> presence, std::vector<int> ranks)
    : c10d::PrefixStore(std::move(prefix), std::move(store)),
      presence_(std::move(presence)),
      ranks_(std::move(ranks)) {}

bool WatchedStore::watches() const {
  return presence_ && presence_->looks();
}

std::vector<uint8_t> WatchedStore::get(const std::string& key) {
  if (watches()) wait({key});
  return c10d::PrefixStore::get(key);
}

std::vector<std::vector<uint8_t>> WatchedStore::multiGet(const std::vector<std::string>& keys) {
  if (watches()) wait(keys);
  return c10d::PrefixStore::multiGet(keys);
}

void WatchedStore::wait(const std::vector<std::string>& keys) {
  wait(keys, getTimeout());
}

void WatchedStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  if (!watches()) {
    c10d::PrefixStore::wait(keys, timeout);
    return;
  }
  const auto look = [&] {
    for (const int rank : ranks_) {
      const std::string ended = presence_->ended(rank);
      if (ended.empty()) continue;
      // It may have failed with the first, as one of the others that have ended.
      const std::string cause = presence_->cause(/*patient=*/false);
      fail_as(ErrorKind::peer, cause.empty() ? ended : cause);
    }
    return false;
  };
  wait_watching(*store_, joinKeys(keys), timeout, look);
}

}  // namespace oslo
