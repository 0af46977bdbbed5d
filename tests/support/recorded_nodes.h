#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace oslo::test {

/// The names of the graph's nodes in the order in which backward passes on this thread run them,
/// until it goes out of scope. On CPU tensors they run on the thread that calls backward.
class RecordedNodes {
 public:
  RecordedNodes() {
    names().clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&begin).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~RecordedNodes() { at::removeCallback(handle_); }
  RecordedNodes(const RecordedNodes&) = delete;
  RecordedNodes& operator=(const RecordedNodes&) = delete;

  /// Those of linear layers and collectives.
  std::vector<std::string> own() const {
    std::vector<std::string> found;
    for (const std::string& name : names()) {
      const bool parameter = name == "OsloUnmark" || name == "OsloAccumulate";
      if (name.starts_with("Oslo") && !parameter) found.push_back(name);
    }
    return found;
  }

  int64_t count(const std::string& name) const {
    return std::count(names().begin(), names().end(), name);
  }

 private:
  static std::vector<std::string>& names() {
    thread_local std::vector<std::string> list;
    return list;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    names().emplace_back(function.name());
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace oslo::test
