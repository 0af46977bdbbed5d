#include "oslo_cpp/step/step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/group_key.h"
#include "mpu/group/rank_check.h"
#include "oslo_cpp/step/check_forward.h"
#include "oslo_cpp/step/check_step.h"
#include "oslo_cpp/step/stray_parameter.h"
#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/pipeline/crossing/share_parameter.h"
#include "parallelizers/pipeline/run/recorded_step.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/search/stage_search.h"

namespace oslo {

Step::Step(StepHistory& history, const Tensors& batch, const LossFunction& loss,
           const StepOptions& options)
    : history_(history),
      batch_(batch),
      loss_(loss),
      options_(options),
      trains_(!options.forward_only() && c10::GradMode::is_enabled()) {}

StepResult Step::take() {
  const FirstStepCheck compared;
  divide();
  learn_uses();
  prepare_gradients();
  run();
  // Later stages are through their lists sooner: they average while earlier ones still compute.
  at_end([&] {
    run_->check_ways();
    average();
    share_loss();
    loss_everywhere_ = counts_->end(loss_everywhere_);
  });
  return result();
}

/// The batch into micro-batches. What is wrong with it is thrown before anything is sent.
void Step::divide() {
  check_step(batch_, default_generators(history_.models.view()), *mpu().group("model"));
  micro_batches_ = split_batch(batch_, history_.schedule.micro_batches);
  list_ = list_of_rank();
  OSLO_CHECK(trains_ || options_.forward_only(),
             "forward_backward_step under torch::NoGradGuard has nothing to do backward; say "
             "StepOptions().forward_only(true)");
  for (size_t i = 0; i < batch_.size(); ++i) {
    OSLO_CHECK(
        mpu().size("pipeline") == 1 || !batch_[i].requires_grad(), "tensor ", i,
        " of the batch requires a gradient, of which each pipeline stage would have the part "
        "of its own uses; pass batch[",
        i, "].detach()");
  }
}

/// What forwards use on which stages, and in which order: once, by a micro-batch on shapes.
void Step::learn_uses() {
  const auto on_shapes = [&] {
    const StepCounts::Scope scope(&history_, nullptr, -1);
    loss_(micro_batches_.copy_of(0));
  };
  share_used_parameters(on_shapes);
  learn_needs(on_shapes);
}

/// Where initialize had no example to run: the first step's first micro-batch is one. What it uses
/// on stages that do not have it they get a copy of, from the first stage that has it.
void Step::share_used_parameters(const std::function<void()>& forward) {
  if (std::exchange(history_.knows_uses, true)) return;
  if (!context()->pipeline()) return;
  const StepModels& models = history_.models;
  const ModelView view = models.view();
  StageMap stages = models.stages();
  // What cannot be run on shapes is found out in the step, and refused by name there.
  const StageUses uses = add_used_stages(stages, {}, view, PlanAxes(mpu().grid()), forward);
  if (!uses.reason.empty()) return;
  for (const at::Tensor& each : models.tensors()) share_parameter(each, stages.of(each));
}

/// At the first step of either kind. A training step may write what an evaluation does not.
void Step::learn_needs(const std::function<void()>& forward) {
  if (!history_.knows_needs.insert(trains_).second) return;
  if (!context()->pipeline() || !context()->stage_ranks().several()) return;
  const ForwardNeeds needs = check_forward(history_.schedule, history_.models, forward);
  history_.needs.stands_at_reads |= needs.stands_at_reads;
  history_.needs.writes.add(needs.writes);
}

void Step::prepare_gradients() {
  counts_.emplace(*mpu().data_group(), micro_batches_.weights,
                  trains_ ? &history_.counted : nullptr, history_.models);
  if (!trains_) return;
  counts_->begin();
  if (history_.steps > 0) history_.models.take_from_first_replica(/*buffers_only=*/true);
  gradients_.emplace(context(), *mpu().data_group(), history_.models.parameters(), list_);
}

void Step::run() {
  if (options_.record()) start_recorder();
  const int number = history_.steps++;
  run_.emplace(ScheduleRun::Models{context(), history_.models.other_contexts(),
                                   history_.models.groups(), streams()},
               ScheduleRun::Work{[this](int micro_batch) { return loss_of(micro_batch); },
                                 micro_batches_.weights, failures_of(number),
                                 gradients_ ? &*gradients_ : nullptr, notes(), history_.needs},
               history_.threads);
  run_->run(list_, mpu().world());
}

/// Where ranks note the first failure of a step: the same on all ranks of this step's models, and
/// no other model's. Stages that wait for nobody are a step ahead of others, and no step follows a
/// failed one where there are stages.
std::string Step::failures_of(int number) const {
  std::string place = "pipeline";
  for (const char* axis : {"data", "tensor", "pipeline"}) {
    const Group& group = *mpu().group(axis);
    place += c10::str("/", group.size());
    if (!group.process_group()) continue;
    place += "#" + count_in_key(group.process_group()->getGroupName());
  }
  return context()->pipeline() ? place : c10::str(place, "/", number);
}

/// This rank's part of the schedule, of the micro-batches that there are: what a rank does for one
/// waits for nothing of another.
std::vector<pipeline::Action> Step::list_of_rank() const {
  const pipeline::Schedule& schedule = trains_ ? history_.schedule : history_.evaluation;
  std::vector<pipeline::Action> list = schedule.actions[mpu().rank("pipeline")];
  const auto number = static_cast<int>(micro_batches_.tensors.size());
  std::erase_if(list,
                [number](const pipeline::Action& action) { return action.micro_batch >= number; });
  return list;
}

void Step::start_recorder() {
  recorder_.emplace(mpu().rank("pipeline"));
  recorder_->start(context()->pipeline() ? common_start(*context()->pipeline())
                                         : pipeline::Recorder::Clock::now());
}

at::Tensor Step::loss_of(int micro_batch) {
  const StepCounts::Scope scope(&history_, &*counts_, micro_batch);
  at::Tensor loss = loss_(micro_batches_.tensors[micro_batch]);
  LayerSegments::end_open();  // what follows is the schedule's
  const bool graph_is_whole = !context()->pipeline() && loss.defined();
  if (graph_is_whole && gradients_ && gradients_->averages()) {
    check_learns_only(loss, gradients_->own());
  }
  return loss;
}

/// One stage a rank: forwards run whole and in order, and draw what one device draws. Several: a
/// stream for each micro-batch.
std::vector<at::Generator> Step::streams() const {
  if (history_.schedule.chunks == 1) return {};
  return default_generators(history_.models.view());
}

void Step::at_end(const std::function<void()>& part) const {
  const auto place = [&] {
    return c10::str("pipeline stage ", mpu().rank("pipeline"), ", end of step");
  };
  run_->named(place, mpu().world(), part);
}

void Step::average() {
  if (gradients_) gradients_->finish(notes());
}

/// From the ranks of the stage that has it to all; where micro-batches differ in that, from each.
void Step::share_loss() {
  loss_everywhere_ = run_->loss();
  if (!context()->pipeline()) return;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope("pipeline schedule");
  // Every rank ran the same forward: all know the stage and the type.
  at::Tensor loss = run_->loss().defined() ? run_->loss().reshape({}).contiguous().clone()
                                           : at::zeros({}, run_->loss_options());
  if (run_->loss_stages().size() > 1) {
    loss = context()->pipeline()->all_reduce(loss);
  } else {
    context()->pipeline()->broadcast(loss,
                                     context()->stage_ranks().rank_of(run_->loss_stages().first()));
  }
  loss_everywhere_ = loss;
}

StepResult Step::result() const {
  StepResult result;
  result.loss = loss_everywhere_;
  result.counted = counts_->counted();
  result.sent = run_->sent();
  result.peak_in_flight = run_->peak();
  if (recorder_) {
    result.measured = pipeline::MeasuredStep(
        context()->pipeline() ? gathered(*context()->pipeline(), recorder_->timeline())
                              : recorder_->timeline());
  }
  return result;
}

}  // namespace oslo
