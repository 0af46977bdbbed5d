#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "mpu/base/ledger.h"
#include "oslo_cpp/model/parallel_model.h"
#include "oslo_cpp/scaling/grad_scaler_options.h"
#include "parallelizers/data/distributed_data_parallel.h"

namespace oslo {

/// Keeps small gradients of float16 from becoming zero: multiplies the loss by a scale, divides the
/// gradients by it before the optimizer sees them, and leaves a step out where one of them has
/// overflowed (Micikevicius et al. 2018, arXiv 1710.03740). PyTorch's GradScaler in C++, with its
/// numbers, methods and errors:
///
///     oslo::GradScaler scaler(parallel);
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);          // only in front of what reads gradients
///     parallel.clip_grad_norm_(1.0);
///     if (scaler.step(optimizer)) schedule.step();
///     scaler.update();
///
/// There is one verdict a step, for the program: the first `unscale_` or `step` behind an `update`
/// reads all gradients of all models that the scaler was made for, on all ranks of the world. One
/// that is not finite, wherever it is, and every optimizer leaves the step out on every rank, so
/// that the step counts of optimizers and schedules stay equal. Gradients need not be averaged over
/// data replicas yet. So all backward passes come before it, and a `scale` behind it is refused;
/// models that are trained one after the other have an `update` each in between.
///
/// In a PipelineSchedule the loss function returns `scaler.scale(loss)`; `StepResult::loss` is then
/// scaled too.
///
/// Making one is collective over the world; every method but the getters is to be called on every
/// rank alike. Costs one message of 40 bytes a step, and a pass over the gradients; no message on
/// one rank. Not for several threads at a time.
class GradScaler {
 public:
  explicit GradScaler(const ParallelModel& parallel, const GradScalerOptions& options = {});
  /// Of all models of the program: `GradScaler scaler({&generator, &critic})`. Throws for none, and
  /// for models in different worlds.
  explicit GradScaler(const std::vector<const ParallelModel*>& models,
                      const GradScalerOptions& options = {});
  /// Of a model that `initialize` has not had, on this rank alone.
  explicit GradScaler(std::shared_ptr<torch::nn::Module> model,
                      const GradScalerOptions& options = {});
  template <typename Impl>
  explicit GradScaler(const torch::nn::ModuleHolder<Impl>& model,
                      const GradScalerOptions& options = {})
      : GradScaler(std::shared_ptr<torch::nn::Module>(model.ptr()), options) {}
  /// Of such a model with data replicas.
  template <typename M>
  explicit GradScaler(const DistributedDataParallel<M>& ddp, const GradScalerOptions& options = {})
      : GradScaler(ddp.core(), options) {}
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  /// The loss times the scale; a loss of half precision, one number, becomes float32.
  at::Tensor scale(const at::Tensor& loss);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& losses);

  /// Divides the gradients of the optimizer's parameters by the scale, for what reads them before
  /// the step (clipping). At most once a step and optimizer, when all its gradients are there.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales unless `unscale_` did, and calls `optimizer.step()` if all gradients of all models
  /// are finite. Returns whether it did: the same on every rank.
  bool step(torch::optim::Optimizer& optimizer);
  /// Refused as PyTorch does while the scaler is enabled: a closure would run the backward again.
  bool step(torch::optim::Optimizer& optimizer,
            const torch::optim::Optimizer::LossClosure& closure);

  /// Ends a step: adjusts the scale by its verdict, or sets it.
  void update(std::optional<double> new_scale = std::nullopt);

  /// 1 where it is not enabled.
  double get_scale() const;
  double get_growth_factor() const;
  void set_growth_factor(double factor);
  double get_backoff_factor() const;
  void set_backoff_factor(double factor);
  int64_t get_growth_interval() const;
  void set_growth_interval(int64_t interval);
  bool is_enabled() const;

  /// "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker", as Python
  /// has them; empty where it is not enabled. Call it behind `update`. Goes into a checkpoint by
  /// `SaveOptions::extra`.
  nlohmann::json state_dict() const;
  /// Throws, naming it, for a key that is missing, and for an empty state.
  void load_state_dict(const nlohmann::json& state);

  /// What verdicts moved: one "all_reduce" a step.
  Ledger& ledger();

 private:
  explicit GradScaler(const DataParallelCore& core, const GradScalerOptions& options);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace oslo
