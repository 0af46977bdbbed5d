#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <c10/core/GradMode.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "oslo_cpp/zero/state_sharing.h"

namespace oslo {

/// Whether an optimizer treats every element of a parameter by itself, whatever its neighbours are.
/// A class derived from one of these may not.
template <typename Base>
constexpr bool kSteppedByElement =
    std::is_same_v<Base, torch::optim::SGD> || std::is_same_v<Base, torch::optim::Adam> ||
    std::is_same_v<Base, torch::optim::AdamW> || std::is_same_v<Base, torch::optim::RMSprop> ||
    std::is_same_v<Base, torch::optim::Adagrad>;

/// Whether an argument is a list of parameters or of groups of them.
template <typename Argument>
constexpr bool kSaysWhatIsStepped =
    std::is_convertible_v<Argument, std::vector<at::Tensor>> ||
    std::is_convertible_v<Argument, std::vector<torch::optim::OptimizerParamGroup>>;

/// ZeRO, stages 1 and 2 (Rajbhandari et al. 2020, arXiv 1910.02054): the optimizer `Base` with its
/// states and gradients shared out over the data replicas of a model. Each rank keeps 1/n of them,
/// steps that part of the parameters, and gathers the rest. The program stays the one for
/// DistributedDataParallel:
///
///     oslo::DistributedDataParallel<Net> ddp(net, parallel.mpu().data_group());
///     oslo::ZeroOptimizer<AdamW> optimizer(parallel, AdamWOptions(1e-3));
///     loss_of(ddp.forward(x), y).backward();
///     optimizer.step();
///
/// It *is* a `Base`: groups, options, schedules, closures, loss scalers and `save_parallelized`
/// take it as one; what a step computes is what `Base` computes beside DDP, bit for bit. SGD,
/// Adam, AdamW, RMSprop and Adagrad are cut by rows, evenly; of any other optimizer, a user's own
/// included, a rank steps whole tensors, balanced by bytes. LBFGS, whose state is one vector
/// over all parameters, is refused.
///
/// `state()` has this rank's share: for each parameter that it has a piece of, tensors of one
/// dimension (whole ones, where tensors are stepped whole). `save` and `load` to an archive are of
/// this rank's share, and a rank's file fits the same grid only; a checkpoint of the model
/// (`SaveOptions().optimizer(&optimizer)`) has the whole states and fits every grid, with and
/// without sharing.
///
/// Behind DistributedDataParallel's backward, and a schedule's step, `.grad` is on every rank a
/// marked tensor: the owner's part on its owner, empty elsewhere.
///
/// A closure is called once, before anything is stepped. All replicas step together, with gradients
/// that were exchanged, or are the same on all of them. Costs an all-gather of the stepped
/// parameters a step, in buckets of 25 MB, and, where something is stepped for the first time, one
/// small collective by which ranks that step other parameters are told so. A graph that is kept
/// over a step is LibTorch's error in backward, also beside SGD, whose own writes LibTorch does not
/// notice. With one replica nothing is shared out, and nothing communicates. One thread at a time.
/// Every rank makes it alike; the model is what `initialize` returned.
template <typename Base>
class ZeroOptimizer : public Base, public SharedStates {
  static_assert(std::is_base_of_v<torch::optim::Optimizer, Base>,
                "ZeroOptimizer shares out the states of a torch::optim::Optimizer");

 public:
  /// Steps the parameters that the model computes with.
  explicit ZeroOptimizer(const ParallelModel& parallel)
      : ZeroOptimizer(parallel, stepped_by_default(parallel)) {}
  template <typename First, typename... More>
  requires(!kSaysWhatIsStepped<First>) explicit ZeroOptimizer(const ParallelModel& parallel,
                                                              First&& options, More&&... more)
      : ZeroOptimizer(parallel, stepped_by_default(parallel), std::forward<First>(options),
                      std::forward<More>(more)...) {}

  /// Steps these.
  template <typename... Options>
  ZeroOptimizer(const ParallelModel& parallel, std::vector<at::Tensor> parameters,
                Options&&... options)
      : ZeroOptimizer(parallel,
                      std::vector<torch::optim::OptimizerParamGroup>{
                          torch::optim::OptimizerParamGroup(std::move(parameters))},
                      std::forward<Options>(options)...) {}

  /// Steps groups with options of their own.
  template <typename... Options>
  ZeroOptimizer(const ParallelModel& parallel,
                const std::vector<torch::optim::OptimizerParamGroup>& groups, Options&&... options)
      : Base(groups, std::forward<Options>(options)...),
        sharing_(parallel, kSteppedByElement<Base> ? ShareUnit::rows : ShareUnit::tensors) {
    OSLO_CHECK(!(std::is_base_of_v<torch::optim::LBFGS, Base>),
               "ZeroOptimizer cannot share out LBFGS, whose state is one vector over all "
               "parameters; take torch::optim::LBFGS itself, on every rank");
    sharing_.share_out(this->param_groups());
  }

  at::Tensor step(typename Base::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const c10::AutoGradMode with_gradients(true);
      loss = closure();
    }
    sharing_.step(*this, [this] { Base::step(nullptr); });
    return loss;
  }

  void load(torch::serialize::InputArchive& archive) override {
    Base::load(archive);
    sharing_.shares_replaced(this->param_groups());
  }

  Whole whole_states() const override { return sharing_.whole_states(*this); }
  void states_replaced() override { sharing_.states_replaced(this->param_groups()); }

 private:
  StateSharing sharing_;
};

}  // namespace oslo
