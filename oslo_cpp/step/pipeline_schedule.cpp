#include "oslo_cpp/step/pipeline_schedule.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>
#include <optional>
#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/step/step.h"
#include "oslo_cpp/step/step_models.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

std::vector<int64_t> longs(const std::vector<int>& numbers) {
  return {numbers.begin(), numbers.end()};
}

pipeline::Schedule schedule_of(const ParallelModel& parallel, const PipelineOptions& options) {
  const int micro_batches =
      options.num_microbatches().value_or(parallel.config().values().num_accumulation_steps);
  OSLO_CHECK(micro_batches >= 1, "PipelineOptions::num_microbatches is ", micro_batches,
             "; a batch is divided into at least 1");
  const PipelineShape shape = pipeline_shape(parallel.config().values());
  const std::string kind = options.kind().value_or(shape.kind);
  pipeline::Schedule schedule = pipeline::make_schedule(
      {kind, parallel.mpu().size("pipeline"), micro_batches,
       options.num_model_chunks().value_or(shape.chunks == 1 ? 0 : shape.chunks)});
  const ContextPtr context = context_of(parallel.mpu().tensor_mesh());
  if (!context->pipeline()) return schedule;
  OSLO_CHECK(schedule.rank_of_stage == context->stage_ranks().rank_of_stage(),
             "PipelineSchedule: ", kind, " has stages 0 to ", schedule.stages() - 1, " on ranks ",
             c10::IntArrayRef(longs(schedule.rank_of_stage)), " of the pipeline, initialize gave ",
             context->stage_ranks().stages(), " stages to ranks ",
             c10::IntArrayRef(longs(context->stage_ranks().rank_of_stage())),
             "; say in the config, beside the pipeline's size, what the schedule is to be: "
             "\"pipeline_schedule\": \"",
             kind, "\", \"num_model_chunks\": ", schedule.chunks,
             " (Colossal-AI: \"pipeline\": {\"size\": ", schedule.ranks, ", \"schedule\": \"", kind,
             "\", \"num_model_chunks\": ", schedule.chunks, "})");
  return schedule;
}

}  // namespace

struct PipelineSchedule::State : StepHistory {};

PipelineSchedule::PipelineSchedule(ParallelModel parallel, const PipelineOptions& options)
    : PipelineSchedule(std::vector<ParallelModel>{std::move(parallel)}, options) {}

PipelineSchedule::PipelineSchedule(std::vector<ParallelModel> models,
                                   const PipelineOptions& options) {
  StepModels of_step(std::move(models));
  pipeline::Schedule schedule;
  of_step.agree_on([&] { schedule = schedule_of(of_step.first(), options); });
  pipeline::Schedule evaluation = pipeline::forward_only(schedule);
  const bool knows_uses = of_step.know_uses();
  state_ = std::make_shared<State>(
      State{{std::move(of_step), std::move(schedule), std::move(evaluation), knows_uses}});
  state_->models.take_from_first_replica(/*buffers_only=*/false);
}

const pipeline::Schedule& PipelineSchedule::schedule() const {
  return state_->schedule;
}

const void* PipelineSchedule::key() const {
  return static_cast<const StepHistory*>(state_.get());
}

StepResult PipelineSchedule::forward_backward_step(const Tensors& batch, const LossFunction& loss,
                                                   const StepOptions& options) {
  OSLO_CHECK(!options.return_outputs(),
             "StepOptions::return_outputs: a loss function shows no outputs; pass forward and "
             "criterion apart");
  return Step(*state_, batch, loss, options).take();
}

StepResult PipelineSchedule::forward_backward_step(const Tensors& batch, const Forward& forward,
                                                   const Criterion& criterion,
                                                   const StepOptions& options) {
  // Those of micro-batches, which lie in order. Forwards that look at values may end in another
  // one.
  std::map<const Tensors*, at::Tensor> outputs;
  StageSet outputs_on;
  const auto loss = [&](const Tensors& micro_batch) {
    const at::Tensor output = forward(micro_batch);
    if (const LayoutPtr own = layout(output); options.return_outputs() && own) {
      OSLO_CHECK(outputs_on.empty() || outputs_on == own->stages(),
                 "StepOptions::return_outputs: the outputs of micro-batches are on pipeline ",
                 outputs_on.to_string(), " and on ", own->stages().to_string(),
                 "; return them from one stage, or take numbers by item()");
      outputs_on = own->stages();
    }
    if (options.return_outputs() && is_here(output)) {
      const c10::AutoGradMode no_grad(false);
      outputs[&micro_batch] = gather_all(value_of(output)).local.detach();
    }
    return criterion(output, micro_batch);
  };
  StepResult result =
      forward_backward_step(batch, LossFunction(loss), StepOptions(options).return_outputs(false));
  if (outputs.empty()) return result;
  Tensors in_order;
  for (const auto& [_, output] : outputs) in_order.push_back(output);
  result.outputs = at::cat(in_order);
  result.labels = batch.back();
  return result;
}

}  // namespace oslo
