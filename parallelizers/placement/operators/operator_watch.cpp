#include "parallelizers/placement/operators/operator_watch.h"

#include <utility>

namespace oslo {
namespace {

/// LibTorch's callbacks are plain functions: this is how they find their watch. LibTorch hands them
/// on to threads that work for this one (Gloo's); those have none.
thread_local OperatorWatch* innermost_watch = nullptr;

}  // namespace

OperatorWatch::OperatorWatch(Before before, After after)
    : before_(std::move(before)), after_(std::move(after)), outer_(innermost_watch) {
  innermost_watch = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  at::removeCallback(handle_);
  innermost_watch = outer_;
}

void OperatorWatch::rethrow() const {
  if (failure_) std::rethrow_exception(failure_);
}

void OperatorWatch::call(const std::function<void()>& step) {
  if (failure_) return;
  const at::DisableRecordFunctionGuard own_operators;
  try {
    step();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

std::unique_ptr<at::ObserverContext> OperatorWatch::on_start(const at::RecordFunction& function) {
  OperatorWatch* watch = innermost_watch;
  if (watch != nullptr && watch->depth_++ == 0) {
    watch->call([&] { watch->before_(function.name(), function.inputs()); });
  }
  return nullptr;
}

void OperatorWatch::on_end(const at::RecordFunction& function, at::ObserverContext*) {
  OperatorWatch* watch = innermost_watch;
  if (watch != nullptr && --watch->depth_ == 0) {
    watch->call([&] { watch->after_(function.name(), function.outputs()); });
  }
}

}  // namespace oslo
