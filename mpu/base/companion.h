#pragma once

#include <memory>
#include <mutex>

namespace oslo {

/// A place in an object of this floor for one object of a floor above, whose type nobody here has
/// to know: it is made when it is first asked for, and lives as long as its owner. Threads may ask
/// together.
class Companion {
 public:
  /// The object. Where there is none yet, it is made from `arguments`. All who ask name one type.
  template <typename T, typename... Arguments>
  T& get(const Arguments&... arguments) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!object_) object_ = std::make_shared<T>(arguments...);
    return *static_cast<T*>(object_.get());
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<void> object_;
};

}  // namespace oslo
