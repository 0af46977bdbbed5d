#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "oslo_cpp/engine/counted_loss.h"
#include "oslo_cpp/engine/engine_core.h"
#include "oslo_cpp/engine/engine_loader.h"
#include "parallelizers/data/distributed_data_parallel.h"

namespace oslo {

/// Colossal-AI's engine: a model, its optimizer and its criterion, and in its steps what the config
/// says of them. `initialize` with an optimizer makes it (engine/initialize_engine.h).
///
///     auto [engine, train_loader] =
///         oslo::initialize(model, optimizer, criterion, loader, config);
///     engine.train();
///     for (auto& batch : train_loader) {
///       engine.zero_grad();
///       auto output = engine(batch.data);
///       auto loss = engine.criterion(output, batch.target);
///       engine.backward(loss);
///       engine.step();
///     }
///
/// What its config keys do, here and in the steps of a PipelineSchedule of the engine:
///   - `gradient_accumulation` N: `step` steps, and `zero_grad` empties, at every N-th batch only.
///     Each loss is divided by N; gradients are averaged over data ranks at the last batch alone.
///   - `clip_grad_norm`: behind that, over all axes, and behind unscaling.
///   - `fp16`, or `amp` with "float16": losses are scaled, and a step whose gradients overflow is
///     left out (GradScaler).
///   - `gradient_handler`: who averages gradients over data ranks; without it
///     DistributedDataParallel does, in backward passes. DataParallelGradientHandler averages them
///     in `step`, whatever parameters a loss used, and leaves buffers alone.
///
/// A criterion that returns a CountedLoss gives the mean over all elements of a step; otherwise a
/// step is of the mean of its batches' losses, as in Colossal-AI.
///
/// Over pipeline stages a PipelineSchedule runs the batches; `engine(batch)` is for evaluations.
/// Every method but the getters is to be called on every rank of the model. On one rank it does
/// what is left: accumulate, clip, scale. Not for several threads at a time.
///
/// `Model` is a module holder (TORCH_MODULE) or a shared_ptr to a module.
template <typename Model, typename Criterion>
class Engine {
  using Of = detail::ModuleOf<Model>;

 public:
  /// The optimizer must outlive it. `share`: of the loader of its batches.
  Engine(Model model, torch::optim::Optimizer& optimizer, Criterion criterion,
         ParallelModel parallel, std::shared_ptr<BatchShare> share)
      : model_(std::move(model)), criterion_(std::move(criterion)), share_(std::move(share)) {
    const MPU& mpu = parallel.mpu();
    if (mpu.size("pipeline") == 1) {
      replicas_ = std::make_unique<DistributedDataParallel<Model>>(model_, mpu.data_group());
    }
    core_ = std::make_unique<EngineCore>(std::move(parallel), optimizer,
                                         replicas_ ? &replicas_->core() : nullptr, share_);
  }

  /// As `train()` and `eval()` of the model.
  void train() { core_->train(true); }
  void eval() { core_->train(false); }

  /// The model's forward, of this data rank's part of a batch.
  template <typename... Args>
  auto operator()(Args&&... args) {
    core_->forward_begins();
    if (!replicas_) return Of::pointer(model_)->forward(std::forward<Args>(args)...);
    return replicas_->forward(std::forward<Args>(args)...);
  }

  /// The criterion. Where that counts, the mean over the counts of all data ranks, with one small
  /// message.
  template <typename... Args>
  at::Tensor criterion(Args&&... args) {
    const auto loss = std::invoke(criterion_, std::forward<Args>(args)...);
    if constexpr (std::is_same_v<std::remove_cv_t<decltype(loss)>, CountedLoss>) {
      return core_->mean_of(loss);
    } else {
      return loss;
    }
  }

  /// The backward pass of a batch's loss.
  void backward(const at::Tensor& loss) { core_->backward(loss); }

  /// Behind each backward pass. Whether the optimizer stepped, the same on all ranks: not before
  /// the last batch of a step, and not where gradients overflowed. Advance a schedule of the
  /// learning rate by it: `if (engine.step()) schedule.step();`.
  bool step() { return core_->step(); }

  /// Empties gradients, at the beginning of a step.
  void zero_grad() { core_->zero_grad(); }

  /// For evaluations: this data rank's rows of a loader, as those of the loader beside the engine,
  /// with every batch of it (engine/engine_loader.h).
  template <typename Loader>
  EngineLoader<Loader> test_loader(Loader&& loader) const {
    using Given = EngineLoader<Loader>;
    return Given(std::forward<Loader>(loader),
                 LoaderPart(parallel().mpu(), /*batches_a_step=*/1, Given::divides, share_));
  }

  const ParallelModel& parallel() const { return core_->parallel(); }
  const Model& model() const { return model_; }
  torch::optim::Optimizer& optimizer() const { return core_->optimizer(); }
  /// Null unless the config computes in float16. Its state goes into a checkpoint by itself.
  GradScaler* scaler() { return core_->scaler(); }

  /// For what runs batches of an engine: schedules.
  EngineCore& core() { return *core_; }
  Criterion& own_criterion() { return criterion_; }

 private:
  Model model_;
  Criterion criterion_;
  std::shared_ptr<BatchShare> share_;
  std::unique_ptr<DistributedDataParallel<Model>> replicas_;  ///< null in a pipeline
  std::unique_ptr<EngineCore> core_;
};

/// The mean of a counted loss in a batch of an engine: what engine.criterion makes of a
/// CountedLoss, for programs that compute their losses by themselves. It is to be all of the loss
/// that goes to engine.backward. See counted_mean.h.
template <typename Model, typename Criterion>
at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count,
                        Engine<Model, Criterion>& engine) {
  return engine.core().mean_of({loss_sum, count});
}

}  // namespace oslo
