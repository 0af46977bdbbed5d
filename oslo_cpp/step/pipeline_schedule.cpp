#include "oslo_cpp/step/pipeline_schedule.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/group/rank_check.h"
#include "oslo_cpp/step/check_forward.h"
#include "oslo_cpp/step/check_step.h"
#include "oslo_cpp/step/step_models.h"
#include "oslo_cpp/step/stray_parameter.h"
#include "parallelizers/data/exchange/step_exchange.h"
#include "parallelizers/pipeline/crossing/forward_writes.h"
#include "parallelizers/pipeline/crossing/share_parameter.h"
#include "parallelizers/pipeline/run/copied_gradients.h"
#include "parallelizers/pipeline/run/recorded_step.h"
#include "parallelizers/pipeline/run/schedule_run.h"
#include "parallelizers/pipeline/run/split_batch.h"
#include "parallelizers/pipeline/run/stray_gradients.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/search/stage_search.h"

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
  const MeshPtr& mesh = parallel.mpu().tensor_mesh();
  if (!mesh->stages) return schedule;
  OSLO_CHECK(schedule.rank_of_stage == mesh->stage_ranks.rank_of_stage(),
             "PipelineSchedule: ", kind, " has stages 0 to ", schedule.stages() - 1, " on ranks ",
             c10::IntArrayRef(longs(schedule.rank_of_stage)), " of the pipeline, initialize gave ",
             mesh->stage_ranks.stages(), " stages to ranks ",
             c10::IntArrayRef(longs(mesh->stage_ranks.rank_of_stage())),
             "; say in the config, beside the pipeline's size, what the schedule is to be: "
             "\"pipeline_schedule\": \"",
             kind, "\", \"num_model_chunks\": ", schedule.chunks,
             " (Colossal-AI: \"pipeline\": {\"size\": ", schedule.ranks, ", \"schedule\": \"", kind,
             "\", \"num_model_chunks\": ", schedule.chunks, "})");
  return schedule;
}

/// The last action of a rank in which parameters get gradients. Without stages the first one's
/// backward is all of it.
std::optional<pipeline::Action> last_gradients(const std::vector<pipeline::Action>& list,
                                               bool staged) {
  const auto last = std::find_if(list.rbegin(), list.rend(), [&](const pipeline::Action& action) {
    const bool whole = action.pass == pipeline::Pass::backward;
    if (staged) return whole || action.pass == pipeline::Pass::backward_weight;
    return action.stage == 0 && (whole || action.pass == pipeline::Pass::backward_input);
  });
  return last == list.rend() ? std::nullopt : std::optional(*last);
}

}  // namespace

struct PipelineSchedule::State {
  State(StepModels of, pipeline::Schedule trains, pipeline::Schedule evaluates)
      : models(std::move(of)), schedule(std::move(trains)), evaluation(std::move(evaluates)) {}

  StepModels models;
  pipeline::Schedule schedule, evaluation;
  CallThreads threads = {};  ///< idle ones
  int64_t steps = 0;
  bool knows_uses = false, stands_at_reads = false;
  std::set<bool> knows_order = {};  ///< of forwards with a backward, without
  ForwardWrites writes = {};        ///< of both

  const MPU& mpu() const { return models.mpu(); }
  const MeshPtr& mesh() const { return models.mesh(); }
  void last_pass_begins(StepExchange& average, int stage) const;
  void finish_gradients(const StrayGradients& strays, CopiedGradients& copied,
                        StepExchange& average, pipeline::Recorder* recorder) const;
  pipeline::MeasuredStep measured(const pipeline::Recorder& recorder) const;
  at::Tensor shared_loss(const ScheduleRun& run) const;
  std::vector<at::Generator> streams() const;
  void share_used_parameters(const std::function<void()>& forward);
  void check_order(bool trains, const std::function<void()>& forward);
};

/// One stage a rank: forwards run whole and in order, and draw what one device draws. Several: a
/// stream for each micro-batch.
std::vector<at::Generator> PipelineSchedule::State::streams() const {
  if (schedule.chunks == 1) return {};
  return default_generators(models.view());
}

/// Where initialize had no example to run: the first step's first micro-batch is one. What it uses
/// on stages that do not have it they get a copy of, from the first stage that has it.
void PipelineSchedule::State::share_used_parameters(const std::function<void()>& forward) {
  if (std::exchange(knows_uses, true)) return;
  if (!mesh()->stages) return;
  const ModelView view = models.view();
  StageMap stages = models.stages();
  // What cannot be run on shapes is found out in the step, and refused by name there.
  const StageUses uses = add_used_stages(stages, {}, view, PlanAxes(mpu().grid()), forward);
  if (!uses.reason.empty()) return;
  for (const at::Tensor& each : models.tensors()) share_parameter(each, stages.of(each));
}

/// At the first step of either kind. A training step may write what an evaluation does not.
void PipelineSchedule::State::check_order(bool trains, const std::function<void()>& forward) {
  if (!knows_order.insert(trains).second) return;
  if (!mesh()->stages || !mesh()->stage_ranks.several()) return;
  const ForwardNeeds needs = check_forward(schedule, models, forward);
  stands_at_reads |= needs.stands_at_reads;
  writes.add(needs.writes);
}

/// The others' gradients have come in earlier passes.
void PipelineSchedule::State::last_pass_begins(StepExchange& average, int stage) const {
  const bool staged = mesh()->stages != nullptr;
  average.last_pass_begins([&](const at::Tensor& parameter) {
    const LayoutPtr layout = oslo::layout(parameter);
    return !staged || !layout || !layout->resident() || layout->stages().contains(stage);
  });
}

/// Averages first: what copies add up then is the same on all of them, bit for bit.
void PipelineSchedule::State::finish_gradients(const StrayGradients& strays,
                                               CopiedGradients& copied, StepExchange& average,
                                               pipeline::Recorder* recorder) const {
  if (mesh()->stages) strays.check(*mesh()->stages);
  using Doing = pipeline::Timeline::Doing;
  if (mpu().data_group()->size() > 1) {
    const pipeline::Recorder::During reduces(recorder, Doing::reduce);
    average.finish();
  }
  if (copied.empty()) return;
  const pipeline::Recorder::During reduces(recorder, Doing::reduce);
  copied.add_up();
}

pipeline::MeasuredStep PipelineSchedule::State::measured(const pipeline::Recorder& recorder) const {
  return pipeline::MeasuredStep(mesh()->stages ? gathered(*mesh()->stages, recorder.timeline())
                                               : recorder.timeline());
}

/// From the ranks of the stage that has it to all; where micro-batches differ in that, from each.
at::Tensor PipelineSchedule::State::shared_loss(const ScheduleRun& run) const {
  const MeshPtr& mesh = this->mesh();
  if (!mesh->stages) return run.loss();
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope("pipeline schedule");
  // Every rank ran the same forward: all know the stage and the type.
  at::Tensor loss = run.loss().defined() ? run.loss().reshape({}).contiguous().clone()
                                         : at::zeros({}, run.loss_options());
  if (run.loss_stages().size() > 1) return mesh->stages->all_reduce(loss);
  mesh->stages->broadcast(loss, mesh->stage_ranks.rank_of(run.loss_stages().first()));
  return loss;
}

PipelineSchedule::PipelineSchedule(ParallelModel parallel, const PipelineOptions& options)
    : PipelineSchedule(std::vector<ParallelModel>{std::move(parallel)}, options) {}

PipelineSchedule::PipelineSchedule(std::vector<ParallelModel> models,
                                   const PipelineOptions& options) {
  StepModels of_step(std::move(models));
  pipeline::Schedule schedule;
  of_step.agree_on([&] { schedule = schedule_of(of_step.first(), options); });
  pipeline::Schedule evaluation = pipeline::forward_only(schedule);
  state_ = std::make_shared<State>(std::move(of_step), std::move(schedule), std::move(evaluation));
  state_->knows_uses = state_->models.know_uses();
  state_->models.take_from_first_replica(/*buffers_only=*/false);
}

const pipeline::Schedule& PipelineSchedule::schedule() const {
  return state_->schedule;
}

StepResult PipelineSchedule::forward_backward_step(const Tensors& batch, const LossFunction& loss,
                                                   const StepOptions& options) {
  OSLO_CHECK(!options.return_outputs(),
             "StepOptions::return_outputs: a loss function shows no outputs; pass forward and "
             "criterion apart");
  const FirstStepCheck compared;
  const MPU& mpu = state_->mpu();
  check_step(batch, default_generators(state_->models.view()), *mpu.group("model"));
  MicroBatches micro_batches = split_batch(batch, state_->schedule.micro_batches);
  const bool trains = !options.forward_only() && c10::GradMode::is_enabled();
  OSLO_CHECK(trains || options.forward_only(),
             "forward_backward_step under torch::NoGradGuard has nothing to do backward; say "
             "StepOptions().forward_only(true)");
  for (size_t i = 0; i < batch.size(); ++i) {
    OSLO_CHECK(
        mpu.size("pipeline") == 1 || !batch[i].requires_grad(), "tensor ", i,
        " of the batch requires a gradient, of which each pipeline stage would have the part "
        "of its own uses; pass batch[",
        i, "].detach()");
  }
  const std::vector<at::Tensor> parameters = trains ? state_->models.parameters() : Tensors();
  const auto on_shapes = [&] { loss(micro_batches.copy_of(0)); };
  state_->share_used_parameters(on_shapes);
  state_->check_order(trains, on_shapes);
  if (trains && state_->steps > 0) state_->models.take_from_first_replica(/*buffers_only=*/true);
  CopiedGradients copied(mpu.tensor_mesh(), parameters);
  StepExchange average(*mpu.data_group(), parameters);
  const bool averages = mpu.data_group()->size() > 1;
  StrayGradients::Parameters own;
  for (const at::Tensor& parameter : parameters) own.insert(parameter.unsafeGetTensorImpl());
  StrayGradients strays(own, mpu.tensor_mesh()->stage_ranks, averages);
  std::optional<pipeline::Recorder> recorder;
  if (options.record()) {
    recorder.emplace(mpu.rank("pipeline"));
    const MeshPtr& mesh = mpu.tensor_mesh();
    recorder->start(mesh->stages ? common_start(*mesh->stages) : pipeline::Recorder::Clock::now());
  }
  pipeline::Recorder* const notes = recorder ? &*recorder : nullptr;
  const auto& list = (trains ? state_->schedule : state_->evaluation).actions[mpu.rank("pipeline")];
  const auto last = last_gradients(list, mpu.tensor_mesh()->stages != nullptr);
  const bool has_whole_graphs = trains && averages && !mpu.tensor_mesh()->stages;
  const auto loss_of = [&](int i) {
    at::Tensor found = loss(micro_batches.tensors[i]);
    if (has_whole_graphs && found.defined()) check_learns_only(found, own);
    return found;
  };
  ScheduleRun run(
      mpu.tensor_mesh(),
      {loss_of, micro_batches.weights, !trains, std::to_string(state_->steps++), notes,
       state_->stands_at_reads, state_->streams(), state_->writes, state_->models.other_meshes(),
       trains ? &strays : nullptr, state_->models.groups(),
       [&](const pipeline::Action& action) {
         if (last && action == *last) state_->last_pass_begins(average, action.stage);
       }},
      state_->threads);
  run.run(list, mpu.world());
  StepResult result;
  // Later stages are through their lists sooner: they average while earlier ones still compute.
  const auto place = [&] {
    return c10::str("pipeline stage ", mpu.rank("pipeline"), ", end of step");
  };
  run.named(place, mpu.world(), [&] {
    run.check_ways();
    if (trains) state_->finish_gradients(strays, copied, average, notes);
    result.loss = state_->shared_loss(run);
  });
  result.sent = run.sent();
  result.peak_in_flight = run.peak();
  if (recorder) result.measured = state_->measured(*recorder);
  return result;
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
