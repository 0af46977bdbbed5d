#include "parallelizers/plan/dry/stage_work.h"

#include <algorithm>

#include "parallelizers/placement/elsewhere/stage_call.h"

namespace oslo {

void StageWork::called(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  hand_out();
  stages_ = stages_of(arguments);
  inner_->called(op, arguments);
}

std::vector<UnitCost> StageWork::finish() {
  hand_out();
  stages_ = StageSet();
  return std::move(costs_);
}

void StageWork::hand_out() {
  const double now = spent_();
  const double seconds = now - before_;
  before_ = now;
  if (stages_.empty() || seconds <= 0) return;
  const auto known = std::find_if(costs_.begin(), costs_.end(),
                                  [&](const UnitCost& each) { return each.units == stages_; });
  if (known == costs_.end()) {
    costs_.push_back({stages_, seconds});
  } else {
    known->cost += seconds;
  }
}

}  // namespace oslo
