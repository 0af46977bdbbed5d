#include "oslo_cpp/engine/engine_core.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/data/counted_gradients.h"
#include "parallelizers/data/exchange/step_exchange.h"
#include "parallelizers/data/sharded/shard_parameters.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

GradScalerOptions scaling(const EngineKeys& keys) {
  GradScalerOptions options;
  if (keys.init_scale) options.init_scale(*keys.init_scale);
  if (keys.growth_factor) options.growth_factor(*keys.growth_factor);
  if (keys.backoff_factor) options.backoff_factor(*keys.backoff_factor);
  if (keys.growth_interval) options.growth_interval(*keys.growth_interval);
  return options;
}

}  // namespace

EngineCore::EngineCore(ParallelModel parallel, torch::optim::Optimizer& optimizer,
                       DataParallelCore* replicas, std::shared_ptr<const BatchShare> share)
    : parallel_(std::move(parallel)),
      optimizer_(optimizer),
      replicas_(replicas),
      share_(std::move(share)),
      cycle_(parallel_.config().values().engine.gradient_accumulation),
      by_handlers_(!parallel_.config().values().engine.gradient_handlers.empty()) {
  const ConfigValues& values = parallel_.config().values();
  if (values.amp && values.amp_dtype == "float16") {
    scaler_.emplace(parallel_, scaling(values.engine));
  }
  choose_exchange();
}

/// Forward and backward of a batch lie under one choice.
void EngineCore::choose_exchange() {
  if (replicas_ != nullptr) replicas_->synchronize(cycle_.is_last() && !by_handlers_);
}

void EngineCore::forward_begins() {
  if (!c10::GradMode::is_enabled()) return;
  weight_ = share_->weight;
  const ConfigValues& values = parallel_.config().values();
  OSLO_CHECK(values.num_accumulation_steps == 1, "engine(batch): the config divides a batch into ",
             values.num_accumulation_steps,
             " micro-batches, and this forward would take it whole; run it by "
             "oslo::PipelineSchedule(engine, ",
             values.num_accumulation_steps, ").forward_backward_step(engine, data), or set '",
             values.names_micro_batches ? "NUM_MICRO_BATCHES" : "num_accumulation_steps", "' to 1");
}

at::Tensor EngineCore::mean_of(const CountedLoss& loss) {
  OSLO_CHECK(replicas_ != nullptr,
             "engine: over pipeline stages counts are added up by the schedule; run "
             "oslo::PipelineSchedule(engine, n).forward_backward_step(engine, data), with "
             "StepOptions().forward_only(true) for an evaluation");
  const at::Tensor mean = counted_mean(full_tensor(loss.sum), loss.count, *replicas_, std::nullopt);
  counted_ = mean.requires_grad();
  return mean;
}

void EngineCore::backward(const at::Tensor& loss) {
  OSLO_CHECK(replicas_ != nullptr,
             "engine.backward over pipeline stages, of which each has a part of the graph; run "
             "oslo::PipelineSchedule(engine, n).forward_backward_step(engine, data), which runs "
             "forward and backward passes");
  const bool counted = std::exchange(counted_, false);
  cycle_.begins(BatchCycle::Way::loop);
  at::Tensor root = loss;
  if (!counted) {
    if (weight_ != 1) root = root * weight_;
    if (cycle_.size() > 1) root = root / cycle_.size();
  }
  if (scaler_) root = scaler_->scale(root);
  root.backward();
  cycle_.ended();
  choose_exchange();
}

/// In flat buckets, behind all backward passes. A schedule has averaged them.
void EngineCore::average_by_handlers() {
  if (!by_handlers_ || replicas_ == nullptr || cycle_.way() == BatchCycle::Way::schedule) return;
  const std::shared_ptr<CountedGradients> counted = replicas_->counted_gradients();
  StepExchange(replicas_->group(), counted->parameters()).finish();
  for (const auto& shards : buckets_of(counted->parameters())) shards->average_over_copies();
  if (counted->form() == CountedGradients::Form::sums) counted->step_ends(0);
}

bool EngineCore::step() {
  if (!cycle_.steps()) return false;
  average_by_handlers();
  const double most = parallel_.config().values().engine.clip_grad_norm;
  if (scaler_ && most > 0) scaler_->unscale_(optimizer_);
  if (most > 0) parallel_.clip_grad_norm_(most);
  bool stepped = true;
  if (scaler_) {
    stepped = scaler_->step(optimizer_);
    scaler_->update();
  } else {
    optimizer_.step();
  }
  cycle_.restart();
  choose_exchange();
  return stepped;
}

void EngineCore::zero_grad() {
  counted_ = false;  // of a batch that was left out
  if (!cycle_.empties()) return;
  optimizer_.zero_grad();
  choose_exchange();
}

EngineCore::Scheduled EngineCore::schedule_begins(bool trains) {
  Scheduled step;
  step.trains = trains;
  if (!trains) return step;
  cycle_.begins(BatchCycle::Way::schedule);
  step.factor = share_->weight / cycle_.size();
  if (scaler_) step.scale = scaler_->get_scale();
  return step;
}

at::Tensor EngineCore::in_schedule(const at::Tensor& loss, const Scheduled& step) {
  const at::Tensor root = step.counted || step.factor == 1 ? loss : loss * step.factor;
  return scaler_ && step.trains ? scaler_->scale(root) : root;
}

at::Tensor EngineCore::schedule_ends(const StepResult& result, const Scheduled& step) {
  const at::Tensor& loss = result.loss;
  if (step.trains) cycle_.ended();
  last_counted_ = result.counted;
  const double factor = (step.counted ? 1 : step.factor) * step.scale;
  return factor == 1 ? loss : loss / factor;
}

}  // namespace oslo
