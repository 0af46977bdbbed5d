#include "oslo_cpp/step/counted_step.h"

#include <optional>

#include "oslo_cpp/step/step_counts.h"

namespace oslo {

at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count,
                        const PipelineSchedule& schedule) {
  return StepCounts::in_loss(schedule.key(), loss_sum, count, std::nullopt);
}

at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count,
                        const PipelineSchedule& schedule, const Count& step_count) {
  return StepCounts::in_loss(schedule.key(), loss_sum, count, step_count);
}

}  // namespace oslo
