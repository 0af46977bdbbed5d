#pragma once

#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/layer_plan.h"
#include "parallelizers/plan/plan_report.h"

namespace oslo {

/// The classes of a model's modules, in their order.
std::vector<std::string> classes_of(const ModelView& model);

/// What plan() tells of every parameter of a model that was cut by `layers`, whose modules were of
/// the classes `classes_before`.
std::vector<PlanEntry> entries_of(const ModelView& model, const std::vector<LayerPlan>& layers,
                                  const std::vector<std::string>& classes_before);

}  // namespace oslo
