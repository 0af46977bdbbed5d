#pragma once

#include <ATen/record_function.h>

#include <memory>

namespace oslo::test {

/// The sum of what `cost` says of each operator that this thread runs, in backward and elsewhere.
template <double (*cost)(const at::RecordFunction& call)>
class CountedCalls {
 public:
  CountedCalls() {
    sum() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedCalls() { at::removeCallback(handle_); }
  CountedCalls(const CountedCalls&) = delete;
  CountedCalls& operator=(const CountedCalls&) = delete;

  double made() const { return sum(); }

 private:
  static double& sum() {
    static thread_local double all = 0;
    return all;
  }

  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
    sum() += cost(call);
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace oslo::test
