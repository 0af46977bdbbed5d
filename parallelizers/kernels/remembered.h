#pragma once

#include <map>
#include <mutex>
#include <utility>

namespace oslo {

/// What was found for each key. To look takes long, so it is done once: that there is nothing (an
/// empty optional, say) is remembered, too. Any thread may ask at any time; of two that ask for a
/// new key at once both may look, and both get the same.
template <typename Key, typename Value>
class Remembered {
 public:
  /// `look()` finds the value of a new key. What it throws is not remembered.
  template <typename Look>
  Value get(const Key& key, const Look& look) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto known = values_.find(key);
      if (known != values_.end()) return known->second;
    }
    Value found = look();
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_.emplace(key, std::move(found)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Value> values_;
};

}  // namespace oslo
