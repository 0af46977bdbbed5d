#include "oslo_cpp/initialize_stages.h"

#include <iostream>

#include "parallelizers/pipeline/evaluation_carrier.h"
#include "parallelizers/pipeline/schedule/kinds.h"
#include "parallelizers/placement/engine/shape_call.h"
#include "parallelizers/plan/stage_search.h"

namespace oslo {

MpuOptions::PrepareMesh prepared_for_stages(at::Device device, const PipelineShape& shape) {
  return [device, shape](Mesh& mesh, const std::shared_ptr<Group>& pipeline) {
    if (pipeline->size() == 1) return;
    mesh.stage_ranks = StageRanks(
        pipeline::rank_of_stage(shape.kind, pipeline->size(), shape.chunks), pipeline->rank());
    mesh.stages = pipeline;
    mesh.device = device;
    mesh.shapes = std::make_shared<KnownShapes>();
    mesh.evaluation = std::make_shared<EvaluationCarrier>(pipeline);
  };
}

StagePlan stages_of(const ModelView& model, const Config& config, int pipeline_ranks) {
  const ConfigValues& values = config.values();
  if (pipeline_ranks == 1 && values.stages.empty()) return {};
  const int stages = pipeline_ranks * pipeline_shape(values).chunks;
  StagePlan plan = plan_stages(
      model, {stages, values.pipeline_num_layers, values.custom_pipeline_stage_id, values.stages});
  return pipeline_ranks == 1 ? StagePlan() : plan;
}

std::vector<PlanLayer> layers_of(const StagePlan& stages) {
  std::vector<PlanLayer> layers;
  for (const StagePlan::Layer& layer : stages.layers) {
    layers.push_back({layer.path, layer.automatic, layer.actual});
  }
  return layers;
}

void add_stages_by_example(StagePlan& stages, const std::vector<LayerPlan>& layers,
                           const ModelView& model, const PlanAxes& axes,
                           const std::function<void()>& example, bool tells) {
  if (stages.tensors.empty() || !example) return;
  const std::string reason = add_used_stages(stages.tensors, layers, model, axes, example);
  if (reason.empty() || !tells) return;
  std::cerr << "oslo: which parameters several pipeline stages use could not be seen, as "
               "example_inputs could not be run on shapes: " +
                   reason + "\n";
}

}  // namespace oslo
