#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <string_view>

namespace oslo::test {

/// How many norms all threads compute.
class CountedNorms {
 public:
  CountedNorms() {
    made_ = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedNorms() { at::removeCallback(handle_); }
  CountedNorms(const CountedNorms&) = delete;
  CountedNorms& operator=(const CountedNorms&) = delete;

  int made() const { return made_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
    if (std::string_view(call.name()) == "aten::native_layer_norm") ++made_;
    return nullptr;
  }

  static inline std::atomic<int> made_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace oslo::test
