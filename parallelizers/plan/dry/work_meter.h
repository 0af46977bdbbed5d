#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>

#include "mpu/base/node_ptr.h"
#include "parallelizers/placement/operators/operator_entry.h"
#include "parallelizers/plan/dry/function_entries.h"
#include "parallelizers/plan/dry/rates.h"

namespace oslo {

/// What the operators of a run would take on a machine, forward and backward.
struct Work {
  double seconds = 0;
  /// Floating-point, of matrix products, convolutions and attention; of doubles each counts twice.
  double operations = 0;
  int64_t placed = 0;  ///< operators on placed values, forward
  /// At most, of results that wait for backward, and of what products gathered.
  int64_t kept_bytes = 0;
};

/// While it lives it sees every operator that this thread runs on local tensors, below the door,
/// and counts what it would take by its arguments' shapes: the longer of arithmetic and memory (the
/// roofline model of Williams et al., 2009), as measured at that size. Backward does not run; what
/// it would take is foreseen from who needs a gradient. At most one a thread at a time.
class WorkMeter {
 public:
  explicit WorkMeter(const Rates& rates);
  ~WorkMeter();
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;

  const Work& work() const { return work_; }

  /// Counts an operator whose results were known, so that it did not run.
  void note(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
            c10::ArrayRef<c10::IValue> results);

 private:
  struct Call;
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function);
  static void end(const at::RecordFunction& function, at::ObserverContext* context);
  const OperatorEntry* entry(const at::RecordFunction& function);
  std::unique_ptr<Call> read(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) const;
  void keep_gathered(const Call& call, c10::ArrayRef<c10::IValue> arguments);
  void count(const Call& call, c10::ArrayRef<c10::IValue> results);
  double forward(const Call& call, double bytes) const;
  double backward(const Call& call, double bytes, double result_bytes) const;

  const Rates& rates_;
  at::CallbackHandle handle_;
  Work work_;
  NodePtr gathering_;  ///< of what was last gathered
  int depth_ = 0;      ///< of operators within a counted one
  FunctionEntries entries_;
};

}  // namespace oslo
