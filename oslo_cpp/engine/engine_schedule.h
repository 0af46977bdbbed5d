#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>

#include "oslo_cpp/engine/counted_loss.h"
#include "oslo_cpp/engine/engine.h"
#include "oslo_cpp/engine/step_batch.h"
#include "oslo_cpp/step/counted_step.h"
#include "oslo_cpp/step/pipeline_schedule.h"

namespace oslo {

/// What a step of an engine's schedule returns, for `auto [output, label, loss] = ...`.
struct EngineStep {
  at::Tensor output;  ///< of the whole batch, on the ranks of the last stage; elsewhere undefined
  at::Tensor label;   ///< where the output is
  at::Tensor loss;    ///< the batch's, one number, on all ranks: neither scaled nor divided
};

template <typename Model, typename LossOf>
PipelineSchedule::PipelineSchedule(Engine<Model, LossOf>& engine, int num_microbatches)
    : PipelineSchedule(engine.parallel(), PipelineOptions().num_microbatches(num_microbatches)) {}

template <typename Model, typename LossOf>
PipelineSchedule::PipelineSchedule(Engine<Model, LossOf>& engine, const PipelineOptions& options)
    : PipelineSchedule(engine.parallel(), options) {}

template <typename Model, typename LossOf, typename Iterator>
EngineStep PipelineSchedule::forward_backward_step(Engine<Model, LossOf>& engine,
                                                   Iterator&& data_iterator,
                                                   const StepOptions& options) {
  using Batch = StepBatch<std::remove_cvref_t<decltype(*data_iterator)>>;
  using Loss = std::invoke_result_t<LossOf&, const at::Tensor&, const at::Tensor&>;
  constexpr bool kCounts = std::is_same_v<std::remove_cvref_t<Loss>, CountedLoss>;
  const Tensors batch = Batch::tensors(*data_iterator);
  EngineCore::Scheduled step = engine.core().schedule_begins(!options.forward_only());
  step.counted = kCounts;
  ++data_iterator;
  const auto& module = detail::ModuleOf<Model>::pointer(engine.model());
  const Forward forward = [&](const Tensors& micro_batch) {
    return [&]<size_t... I>(std::index_sequence<I...>)->at::Tensor {
      return module->forward(micro_batch[I]...);
    }
    (std::make_index_sequence<Batch::inputs>());
  };
  const Criterion criterion = [&](const at::Tensor& output, const Tensors& micro_batch) {
    const Loss loss = std::invoke(engine.own_criterion(), output, micro_batch.back());
    if constexpr (kCounts) {
      return engine.core().in_schedule(counted_mean(loss.sum, loss.count, *this), step);
    } else {
      return engine.core().in_schedule(loss, step);
    }
  };
  const StepResult result = forward_backward_step(
      batch, forward, criterion, StepOptions(options).return_outputs(options.outputs_or(true)));
  return {result.outputs, result.labels, engine.core().schedule_ends(result, step)};
}

/// A PipelineSchedule of several stages a rank ("interleaved"), in Colossal-AI's words. The config
/// says so too, beside the pipeline's size: "num_model_chunks".
class InterleavedPipelineSchedule : public PipelineSchedule {
 public:
  template <typename Model, typename LossOf>
  InterleavedPipelineSchedule(Engine<Model, LossOf>& engine, int num_microbatches,
                              int num_model_chunks)
      : PipelineSchedule(engine.parallel(), PipelineOptions()
                                                .num_microbatches(num_microbatches)
                                                .kind("interleaved")
                                                .num_model_chunks(num_model_chunks)) {}
};

}  // namespace oslo
