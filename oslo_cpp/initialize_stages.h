#pragma once

#include <functional>
#include <vector>

#include "mpu/mpu.h"
#include "oslo_cpp/config/config.h"
#include "parallelizers/pipeline/stage_plan.h"
#include "parallelizers/plan/layer_plan.h"
#include "parallelizers/plan/plan_report.h"

namespace oslo {

// What initialize does for a pipeline.

/// What values of a model on several pipeline stages have to know, for models on `device`.
MpuOptions::PrepareMesh prepared_for_stages(at::Device device, const PipelineShape& shape);

/// The stages of all parameters and buffers; in a pipeline of one rank none in particular. Throws
/// what `plan_stages` throws.
StagePlan stages_of(const ModelView& model, const Config& config, int pipeline_ranks);

/// What the plan tells of them.
std::vector<PlanLayer> layers_of(const StagePlan& stages);

/// Adds the stages on which the example's forward uses what other stages have. With `tells`, says
/// on the standard error why that could not be seen.
void add_stages_by_example(StagePlan& stages, const std::vector<LayerPlan>& layers,
                           const ModelView& model, const PlanAxes& axes,
                           const std::function<void()>& example, bool tells);

}  // namespace oslo
