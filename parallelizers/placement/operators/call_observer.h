#pragma once

#include <ATen/core/ivalue.h>

#include <exception>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Is told of the calls on placed values that the model's own forward makes, and not of those that
/// rules make while they run. Of one thread.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  virtual void called(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) = 0;
  /// Whether it is told of calls; who is not may be of several threads.
  virtual bool follows_calls() const { return true; }
  /// The call ended by an exception.
  virtual void threw(const OperatorEntry& op) = 0;
  /// An operator that the program calls is about to meet a marked parameter of the model; before
  /// anybody else sees it, a tap included (operator_tap.h).
  virtual void about_to_use(const at::Tensor& /*parameter*/,
                            c10::ArrayRef<c10::IValue> /*arguments*/) {}

  /// Around one call. `observer` may be null: nobody is told.
  class Scope {
   public:
    Scope(CallObserver* observer, const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments)
        : observer_(observer != nullptr && observer->follows_calls() ? observer : nullptr),
          op_(op) {
      if (observer_ == nullptr) return;
      exceptions_ = std::uncaught_exceptions();
      if (observer_->depth_++ == 0) observer_->called(op, arguments);
    }
    ~Scope() {
      if (observer_ == nullptr || --observer_->depth_ > 0) return;
      if (std::uncaught_exceptions() > exceptions_) observer_->threw(op_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallObserver* observer_;
    const OperatorEntry& op_;
    int exceptions_ = 0;
  };

 private:
  int depth_ = 0;  ///< of rules within rules
};

}  // namespace oslo
