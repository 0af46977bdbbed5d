#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallelizers/memory/budget/step_profile.h"
#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/plan_axes.h"

namespace torch::optim {
class Optimizer;
}

namespace oslo {

/// What a rank holds in a step with everything computed again, as far as it can be known before one
/// ran: by a run of the example on shapes, or else of the model and its optimizer alone.
StepProfile survey_memory(const ModelView& model, const std::vector<LayerPlan>& layers,
                          const PlanAxes& axes, const std::vector<SegmentLayers>& segments,
                          const std::function<void()>& example,
                          const torch::optim::Optimizer* optimizer);

}  // namespace oslo
