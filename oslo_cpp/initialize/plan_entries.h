#pragma once

#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/report/plan_report.h"

namespace oslo {

/// What plan() tells of every parameter of a model that was cut by `layers`.
std::vector<PlanEntry> entries_of(const ModelView& model, const std::vector<LayerPlan>& layers);

}  // namespace oslo
