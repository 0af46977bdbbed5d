#include "mpu/watched_store.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "mpu/error.h"
#include "mpu/presence.h"

namespace oslo {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

bool wait_watching(c10d::Store& store, const std::vector<std::string>& keys, milliseconds limit,
                   const std::function<bool()>& stop) {
  const auto end = Clock::now() + limit;
  for (milliseconds rest = limit; rest > kLookEvery;
       rest = std::chrono::ceil<milliseconds>(end - Clock::now())) {
    try {
      store.wait(keys, kLookEvery);
      return true;
    } catch (const c10::DistStoreError&) {
      if (stop()) return false;
    }
  }
  const auto rest = std::chrono::ceil<milliseconds>(end - Clock::now());
  try {
    store.wait(keys, std::clamp(rest, milliseconds(1), std::max(limit, milliseconds(1))));
  } catch (const c10::DistStoreError&) {
    if (limit <= kLookEvery) throw;
    // In the store's words, which knows of the last moment only.
    C10_THROW_ERROR(DistStoreError, c10::str("wait timeout after ", limit.count(),
                                             "ms, keys: ", c10::Join(", ", keys)));
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
      if (!ended.empty()) fail(ended);
    }
    return false;
  };
  wait_watching(*store_, joinKeys(keys), timeout, look);
}

}  // namespace oslo
