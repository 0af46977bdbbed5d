#include "oslo_cpp/initialize/memory/survey_memory.h"

#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>

#include "oslo_cpp/initialize/memory/optimizer_bytes.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/dry/step_forecast.h"

namespace oslo {
namespace {

StepProfile survey(const ModelView& model, std::vector<LayerPlan> layers, const PlanAxes& axes,
                   const std::vector<SegmentLayers>& segments, const std::function<void()>& example,
                   const torch::optim::Optimizer* optimizer) {
  std::unordered_map<const c10::TensorImpl*, int> segment_of;
  std::vector<std::string> names;
  for (const SegmentLayers& segment : segments) {
    for (const at::Tensor& parameter : segment.parameters) {
      segment_of.emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(names.size()));
    }
    names.push_back(segment.name);
  }
  const auto tape = std::make_shared<MemoryTape>(segment_of);
  const Rates rates = Rates::nominal();
  FirstWrites writes;
  StepBase base;
  {
    DryRun run(model, axes, example, writes, rates);
    run.set_tape(tape);
    run.run(layers);
    const DryRun::ModelBytes bytes = run.model_bytes();
    std::vector<int64_t> trained;
    base.segment_gradients.resize(segments.size());
    for (const auto& [impl, each] : bytes.trained) {
      trained.push_back(each);
      base.gradients += each;
      const auto found = segment_of.find(impl);
      if (found != segment_of.end()) base.segment_gradients[found->second] += each;
    }
    const OptimizerBytes stepped = optimizer_bytes(optimizer, trained);
    base.model = bytes.all + tape->input_bytes();
    base.states = stepped.states;
    base.temporaries = stepped.temporaries;
  }
  writes.check();
  return forecast_step(*tape, names, base);
}

}  // namespace

StepProfile survey_memory(const ModelView& model, const std::vector<LayerPlan>& layers,
                          const PlanAxes& axes, const std::vector<SegmentLayers>& segments,
                          const std::function<void()>& example,
                          const torch::optim::Optimizer* optimizer) {
  // Of one rank no operator would be seen: two, of which each has the whole model.
  const bool divided = axes.ranks() > 1;
  const PlanAxes seen = divided ? axes : PlanAxes(2);
  std::vector<LayerPlan> planned = layers;
  for (LayerPlan& layer : planned) {
    if (divided) break;
    layer.style = {};
    layer.other_styles.clear();
  }
  if (example) {
    try {
      return survey(model, planned, seen, segments, example, optimizer);
    } catch (const std::exception&) {
      // It cannot be run on shapes, or not at all: then the plan has said so.
    }
  }
  return survey(
      model, planned, seen, segments, [] {}, optimizer);
}

}  // namespace oslo
