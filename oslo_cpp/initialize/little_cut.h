#pragma once

#include <string>
#include <vector>

#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/report/plan_report.h"

namespace oslo {

/// One line for people where less than half of a model's parameters, in bytes, is cut over the
/// `ranks` of the tensor axis: how much, which classes hold the rest, and what may help. Empty
/// where half or more is cut.
std::string little_cut(const std::vector<PlanEntry>& entries, const std::vector<LayerPlan>& layers,
                       int ranks, bool example, bool cut_own_parameters);

}  // namespace oslo
