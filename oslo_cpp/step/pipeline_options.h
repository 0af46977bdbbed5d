#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>

#include "parallelizers/pipeline/schedule/timeline/measured_step.h"

namespace oslo {

/// How a batch is run: see PipelineSchedule.
class PipelineOptions {
 public:
  /// How many parts a batch is divided into; unset: the config's num_accumulation_steps (1 in
  /// dialects that have none).
  PipelineOptions& num_microbatches(int number) { return micro_batches_ = number, *this; }
  /// The order of passes: "naive", "gpipe", "1f1b", "interleaved", "zero_bubble", "zbv" or
  /// "dualpipev" (pipeline/schedule/order/kinds.h); unset: that of the config, "1f1b" where it says
  /// none.
  PipelineOptions& kind(std::string kind) { return kind_ = std::move(kind), *this; }
  /// Stages a rank; unset: as the config says. `initialize` gave the stages to ranks by the config,
  /// so another number, or a kind that gives them otherwise, is refused.
  PipelineOptions& num_model_chunks(int number) { return chunks_ = number, *this; }

  const std::optional<int>& num_microbatches() const { return micro_batches_; }
  const std::optional<std::string>& kind() const { return kind_; }
  const std::optional<int>& num_model_chunks() const { return chunks_; }

 private:
  std::optional<int> micro_batches_;
  std::optional<std::string> kind_;
  std::optional<int> chunks_;
};

/// What one step does.
class StepOptions {
 public:
  /// No backward passes, and no gradients: an evaluation.
  StepOptions& forward_only(bool on) { return forward_only_ = on, *this; }
  /// Keeps the outputs, and the labels, of all micro-batches; of the form with forward and
  /// criterion.
  StepOptions& return_outputs(bool on) { return return_outputs_ = on, *this; }

  /// Notes what every rank does when: StepResult::measured. The same on all ranks of a model. Costs
  /// four small collectives a step (none at pipeline size 1), and two readings of the clock for
  /// each action and message; nothing where it is off.
  StepOptions& record(bool on) { return record_ = on, *this; }

  bool forward_only() const { return forward_only_; }
  bool return_outputs() const { return outputs_or(false); }
  /// As it was set; else `unless_said`.
  bool outputs_or(bool unless_said) const { return return_outputs_.value_or(unless_said); }
  bool record() const { return record_; }

 private:
  bool forward_only_ = false;
  std::optional<bool> return_outputs_;
  bool record_ = false;
};

/// What came out of a step.
struct StepResult {
  /// The mean over the batch (micro-batches weighted by their rows), one number without history,
  /// the same on every rank that holds a part of this copy of the model. Data replicas have their
  /// own.
  at::Tensor loss;
  /// With `return_outputs`, on the ranks of the stage that computed them: those of all
  /// micro-batches, joined along dimension 0, whole, without history. Undefined elsewhere.
  at::Tensor outputs;
  /// Beside the outputs: the last tensor of the batch.
  at::Tensor labels;
  /// Where the loss is a counted mean (counted_step.h): what this replica's batch counts.
  std::optional<double> counted;
  /// Messages with values that this rank sent to other stages in the forward passes.
  int64_t sent = 0;
  /// Forward passes, each of one stage and micro-batch, that this rank held for their backward
  /// passes at a time, at most: until all of it had run, the weights' part too.
  int peak_in_flight = 0;
  /// With `record`: what each rank of this one's pipeline (the ranks with its place on the other
  /// stages) did when, on all of them: `measured->report()`, `->svg()`, `->chrome_trace()`.
  std::optional<pipeline::MeasuredStep> measured;
};

}  // namespace oslo
