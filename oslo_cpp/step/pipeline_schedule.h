#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "oslo_cpp/model/parallel_model.h"
#include "oslo_cpp/step/pipeline_options.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo {

template <typename Model, typename Criterion>
class Engine;
struct EngineStep;

/// Trains and evaluates a model whose layers lie on several pipeline stages (and any other), a
/// batch in micro-batches at a time:
///
///     oslo::PipelineSchedule schedule(parallel, oslo::PipelineOptions().num_microbatches(8));
///     auto step = schedule.forward_backward_step({tokens, labels}, [&](const auto& micro) {
///       return loss_of(model->forward(micro[0]), micro[1]);
///     });
///     parallel.clip_grad_norm_(1.0);
///     optimizer.step();
///
/// Every rank runs the user's own forward for every micro-batch: operators of its stages compute,
/// those of other stages run on shapes, and a value that a later stage needs is sent to it once.
/// Where a rank has several stages the forwards of several micro-batches are under way at a time,
/// each on a thread of its own, of which one runs at a time (docs/pipeline.md).
/// Gradients add up in `.grad` as `backward()` adds them, scaled so that a step is that of the
/// whole batch: a mean loss over micro-batches weighted by their rows (8 rows in 3: 3, 3, 2). At
/// the end copies of a parameter on several stages get the sum of their gradients, and data
/// replicas the average (no DistributedDataParallel around the model then): once a step. Of
/// pipeline size 1 this is gradient accumulation.
///
/// Make it on every rank, on models that `initialize` returned; it compares nothing but gives all
/// data replicas the parameters and buffers of the first. A pipeline's steps are collective over
/// all ranks of a model: call them with the same batch on all of those, as with tensor parallelism.
/// What goes wrong in a step is thrown with the stage, the micro-batch and the pass in front, and
/// on the other ranks at once with what went wrong first.
///
/// GPipe: Huang et al. 2019 (arXiv 1811.06965); 1F1B and interleaved stages: Narayanan et al. 2021
/// (arXiv 2104.04473); zero bubble: Qi et al. 2023 (arXiv 2401.10241); ZB-V: Qi et al. 2024 (arXiv
/// 2405.15362); DualPipe: DeepSeek-AI 2024 (arXiv 2412.19437).
class PipelineSchedule {
 public:
  /// Throws for a schedule that cannot be (pipeline/schedule/order/kinds.h), and for one whose
  /// stages are on other ranks than `initialize` gave them to.
  explicit PipelineSchedule(ParallelModel parallel, const PipelineOptions& options = {});
  /// Of several models, which `initialize` returned one by one and the function of a step calls
  /// together: a generator and its critic, an encoder and a head. All of them are trained, none
  /// has to be used in every step. Throws unless they are over the same ranks. Gradients of models
  /// that are not given here are refused where the step would have to average or sum them.
  explicit PipelineSchedule(std::vector<ParallelModel> models, const PipelineOptions& options = {});

  /// Of the model of an engine, in Colossal-AI's words: in engine/engine_schedule.h, as is what its
  /// steps return.
  template <typename Model, typename LossOf>
  PipelineSchedule(Engine<Model, LossOf>& engine, int num_microbatches);
  template <typename Model, typename LossOf>
  explicit PipelineSchedule(Engine<Model, LossOf>& engine, const PipelineOptions& options = {});

  using Tensors = std::vector<at::Tensor>;
  /// From the tensors of a micro-batch to its loss, one number.
  using LossFunction = std::function<at::Tensor(const Tensors& micro_batch)>;
  /// The same in two: what the model makes of a micro-batch, and the loss of that.
  using Forward = std::function<at::Tensor(const Tensors& micro_batch)>;
  using Criterion = std::function<at::Tensor(const at::Tensor& output, const Tensors& micro_batch)>;

  /// One step. `batch` is divided along dimension 0 of its tensors, which are the same on all ranks
  /// of a copy of the model. Throws for fewer rows than micro-batches, before anything is sent.
  StepResult forward_backward_step(const Tensors& batch, const LossFunction& loss,
                                   const StepOptions& options = {});
  StepResult forward_backward_step(const Tensors& batch, const Forward& forward,
                                   const Criterion& criterion, const StepOptions& options = {});

  /// One step of an engine, whose model is that of this schedule: takes a batch from the iterator,
  /// which goes on to the next one, and runs model and criterion. `engine.step()` and
  /// `engine.zero_grad()` are the program's, as around `engine.backward`:
  ///
  ///     auto data_iterator = train_loader.begin();
  ///     auto [output, label, loss] = schedule.forward_backward_step(engine, data_iterator);
  ///
  /// Outputs are kept unless the options say return_outputs(false).
  template <typename Model, typename LossOf, typename Iterator>
  EngineStep forward_backward_step(Engine<Model, LossOf>& engine, Iterator&& data_iterator,
                                   const StepOptions& options = {});

  /// The lists of actions that the ranks follow.
  const pipeline::Schedule& schedule() const;

  /// Tells it and its copies from others.
  const void* key() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace oslo
