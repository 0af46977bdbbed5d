#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "parallelizers/placement/operators/call_observer.h"
#include "parallelizers/stages/balance.h"

namespace oslo {

/// Divides the time of a run among the pipeline stages that its operators run on: is told of every
/// call on placed values, and hands what was spent until the next one to the stages of this one.
/// Ordinary operators between two calls count with the earlier one.
class StageWork final : public CallObserver {
 public:
  /// `inner` is told of the calls as well. `spent` gives the seconds since the run began.
  StageWork(std::shared_ptr<CallObserver> inner, std::function<double()> spent)
      : inner_(std::move(inner)), spent_(std::move(spent)) {}

  void called(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) override;
  void threw(const OperatorEntry& op) override { inner_->threw(op); }

  /// Ends the run: a line for each set of stages that computed something together, with seconds.
  std::vector<UnitCost> finish();

 private:
  void hand_out();

  std::shared_ptr<CallObserver> inner_;
  std::function<double()> spent_;
  std::vector<UnitCost> costs_;
  StageSet stages_;  ///< of the call that runs; empty before the first one, and of all ranks
  double before_ = 0;
};

}  // namespace oslo
