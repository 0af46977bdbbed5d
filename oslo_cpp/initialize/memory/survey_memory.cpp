#include "oslo_cpp/initialize/memory/survey_memory.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "oslo_cpp/initialize/memory/optimizer_bytes.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/timeline/simulate.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/search/stage_search.h"

namespace oslo {
namespace {

/// The segments that parameters belong to.
using SegmentOf = std::unordered_map<const c10::TensorImpl*, int>;

SegmentOf segment_of(const std::vector<SegmentLayers>& segments) {
  SegmentOf numbers;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (const at::Tensor& parameter : segments[i].parameters) {
      numbers.emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(i));
    }
  }
  return numbers;
}

/// Of what a rank of this stage has of the model.
StepBase base_of(const std::vector<DryRun::TensorBytes>& model, const SurveyedModel& of,
                 const SegmentOf& segments, int stage) {
  StepBase base;
  base.segment_gradients.resize(of.segments.size());
  std::vector<int64_t> trained;
  for (const DryRun::TensorBytes& each : model) {
    const StageSet stages = of.tensors.of(each.tensor);
    if (!stages.empty() && !stages.contains(stage)) continue;
    base.model += each.bytes;
    if (!each.trains) continue;
    // Gradients of halves are floats, and what optimizers make of them.
    const int64_t bytes = std::max<int64_t>(each.bytes, 4 * each.tensor.numel());
    trained.push_back(bytes);
    base.gradients += bytes;
    const auto found = segments.find(each.tensor.unsafeGetTensorImpl());
    if (found != segments.end()) base.segment_gradients[found->second] += bytes;
  }
  const OptimizerBytes stepped = optimizer_bytes(of.optimizer, trained);
  base.states = stepped.states;
  base.temporaries = stepped.temporaries;
  return base;
}

std::vector<StageSurvey> survey(const SurveyedModel& of, std::vector<LayerPlan> layers,
                                const PlanAxes& axes, const std::function<void()>& example) {
  const SegmentOf segments = segment_of(of.segments);
  std::vector<std::string> names;
  for (const SegmentLayers& segment : of.segments) names.push_back(segment.name);
  const auto tape = std::make_shared<MemoryTape>(segments);
  const Rates rates = Rates::nominal();
  FirstWrites writes;
  std::vector<StageSurvey> stages;
  {
    DryRun run(of.model, axes, example, writes, rates);
    run.set_stages(of.tensors);
    run.set_tape(tape);
    run_over_stages(run, of.model, layers);
    const std::vector<DryRun::TensorBytes> model = run.model_bytes();
    for (size_t i = 0; i < of.in_flight.size(); ++i) {
      const int stage = static_cast<int>(i);
      StageSurvey& each = stages.emplace_back();
      each.base = base_of(model, of, segments, stage);
      StepBase held = each.base;
      if (stage == 0) held.model += tape->input_bytes();
      each.profile = forecast_step(*tape, names, held, stage, of.in_flight[i]);
      if (!of.offload) continue;
      each.moved = forecast_step(*tape, names, held, stage, of.in_flight[i], &*of.offload);
    }
  }
  writes.check();
  return stages;
}

}  // namespace

std::vector<int> forwards_in_flight(const ConfigValues& values, int stages) {
  const PipelineShape shape = pipeline_shape(values);
  pipeline::ScheduleOptions options;
  options.kind = shape.kind;
  options.chunks = shape.chunks;
  options.ranks = stages / shape.chunks;
  options.micro_batches = values.num_accumulation_steps;
  const pipeline::Schedule schedule = pipeline::make_schedule(options);
  const std::vector<pipeline::Peak> peaks = pipeline::peaks_of(schedule);
  std::vector<int> in_flight;
  for (const int rank : schedule.rank_of_stage) {
    // Those of a rank's stages together.
    in_flight.push_back((peaks[rank].until_input + shape.chunks - 1) / shape.chunks);
  }
  return in_flight;
}

std::vector<StageSurvey> survey_memory(const SurveyedModel& of) {
  // Of one rank no operator would be seen: two, of which each has the whole model.
  const bool cuts = of.axes.ranks() > 1;
  const PlanAxes seen = cuts ? of.axes : PlanAxes(2);
  std::vector<LayerPlan> planned = of.layers;
  for (LayerPlan& layer : planned) {
    if (cuts) break;
    layer.style = {};
    layer.other_styles.clear();
  }
  if (of.example) {
    try {
      return survey(of, planned, seen, of.example);
    } catch (const std::exception&) {
      // It cannot be run on shapes, or not at all: then the plan has said so.
    }
  }
  return survey(of, planned, seen, [] {});
}

}  // namespace oslo
