#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace oslo {

/// Watches the operators that this thread's code calls itself; those that an operator calls in turn
/// (LibTorch's composites, this library's rules) are not reported. So a parallel model and the same
/// model on one device are seen to call the same operators. Built on LibTorch's `RecordFunction`,
/// the hook of its profiler.
class OperatorWatch {
 public:
  /// Sees an operator's arguments before it runs; they are gone afterwards.
  using Before = std::function<void(const std::string& name, c10::ArrayRef<c10::IValue> inputs)>;
  using After = std::function<void(const std::string& name, c10::ArrayRef<c10::IValue> outputs)>;

  /// Until the watch is destroyed. Operators that the functions call are not reported.
  OperatorWatch(Before before, After after);
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  /// Throws what one of the functions threw: LibTorch would only print it.
  void rethrow() const;

 private:
  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context);
  void call(const std::function<void()>& step);

  Before before_;
  After after_;
  int depth_ = 0;
  std::exception_ptr failure_;
  OperatorWatch* outer_;
  at::CallbackHandle handle_;
};

}  // namespace oslo
