#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

namespace oslo {

class Presence;

/// How often a rank that waits looks whether the others are there.
inline constexpr std::chrono::milliseconds kLookEvery{250};

/// Waits for `keys` and throws as `store.wait` does; asks `stop` every `kLookEvery`, never where
/// the keys come before. False: `stop` said so. It may throw. Keys that do not come at once are
/// seen up to 20 ms late.
bool wait_watching(c10d::Store& store, const std::vector<std::string>& keys,
                   std::chrono::milliseconds limit, const std::function<bool()>& stop);

/// Keys below `prefix` of a store, of ranks that make something together: who waits for a key there
/// throws an `Error` that says so when one of them has ended on this host. LibTorch's waits for the
/// time limit then.
class WatchedStore final : public c10d::PrefixStore {
 public:
  /// `ranks`: in the world. `presence` may be null; then nobody is looked at.
  WatchedStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store,
               std::shared_ptr<Presence> presence, std::vector<int> ranks);

  std::vector<uint8_t> get(const std::string& key) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  bool watches() const;

  const std::shared_ptr<Presence> presence_;
  const std::vector<int> ranks_;
};

}  // namespace oslo
