#pragma once

#include <ATen/core/Tensor.h>

#include "oslo_cpp/step/pipeline_schedule.h"
#include "parallelizers/data/counted_mean.h"

namespace oslo {

/// The same in the loss function of a step of a PipelineSchedule, for the micro-batch that it is
/// called with:
///
///     schedule.forward_backward_step({tokens, labels}, [&](const auto& micro) {
///       auto sum = cross_entropy(model->forward(micro[0]), micro[1], reduction(torch::kSum));
///       return oslo::counted_mean(sum, micro[1].ne(-100).sum(), schedule);
///     });
///
/// A step then is that of the mean over the counts of all its micro-batches and data replicas, in
/// place of the mean of means weighted by rows, and `StepResult::loss` is this mean, the same on
/// all ranks. Steps whose gradients add up give the mean over the counts of all of them. What is
/// returned here is the sum on its way into that mean: the loss function returns it, or its product
/// with a number (GradScaler::scale).
///
/// With other terms beside it, or several of them in one loss, each takes `step_count`, this
/// replica's count of the whole step, which scales at once; `StepResult::loss` then is this
/// replica's share of the loss, whose average over replicas is the loss.
///
/// Counts are numbers that all ranks of a copy of the model have, such as those of labels. Throws
/// outside of the schedule's loss function; where micro-batches do not count alike; where gradients
/// of other losses are there already. Two messages of 8 bytes a step over data replicas.
at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count,
                        const PipelineSchedule& schedule);
at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count,
                        const PipelineSchedule& schedule, const Count& step_count);

}  // namespace oslo
