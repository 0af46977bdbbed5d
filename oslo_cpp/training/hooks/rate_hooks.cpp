#include "oslo_cpp/training/hooks/rate_hooks.h"

#include <cstdint>

#include "checkpoint/resume/scheduler_steps.h"
#include "mpu/base/error.h"
#include "oslo_cpp/training/hooks/metric_of.h"

namespace oslo {

void LRSchedulerHook::after_train_iter(Training&, const TrainedBatch& batch) {
  if (!by_epoch_ && batch.stepped) schedule_.step();
}

void LRSchedulerHook::after_epoch(Training&) {
  if (by_epoch_) schedule_.step();
}

nlohmann::json LRSchedulerHook::state_dict() const {
  if (const auto* own = dynamic_cast<const RateSchedule*>(&schedule_)) return own->state_dict();
  return {{"steps", SchedulerSteps::of(schedule_)}};
}

void LRSchedulerHook::load_state_dict(const nlohmann::json& state) {
  if (auto* own = dynamic_cast<RateSchedule*>(&schedule_)) return own->load_state_dict(state);
  OSLO_CHECK(state.contains("steps") && !state.contains("base_lrs"),
             "LRSchedulerHook: the state is that of another schedule; make the one that was saved");
  SchedulerSteps::of(schedule_) = state["steps"].get<unsigned>();
}

void PlateauHook::after_test(Training& training) {
  plateau_.step(metric_of(training, metric_, name()));
}

}  // namespace oslo
