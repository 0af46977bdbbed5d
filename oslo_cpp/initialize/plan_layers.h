#pragma once

#include <string>
#include <vector>

#include "oslo_cpp/initialize/memory/memory_limit.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/explicit_plan.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/plan/report/plan_report.h"
#include "parallelizers/stages/stage_plan.h"

namespace oslo {

// What initialize plans of a model's layers.

/// By structure, by policies and by patterns, in this order. Throws what these throw.
std::vector<LayerPlan> plan_layers(const ModelView& model, const PlanPatterns& patterns,
                                   const std::vector<Policy>& policies, const PlanAxes& axes);

/// Plans again by what the example's forward would take, and tells what it expects. Where it cannot
/// be run on shapes the plan stays as it is and says so, and with `tells` a line on the standard
/// error too; an example that cannot be run at all is an error.
PlanForecast plan_by_example(std::vector<LayerPlan>& layers, const ModelView& model,
                             const PlanAxes& axes, const SearchLimits& limits,
                             bool cut_own_parameters, const Rates& rates, bool tells);

/// Lets values between the planned layers lie cut along the sequence, as the config's
/// "sequence_parallel" asks for, and tells in `forecast` what that changes. Throws a config error
/// without an example that runs on shapes, by which the sequence is found, and where nothing of the
/// model can be cut along one.
void plan_sequence(std::vector<LayerPlan>& layers, PlanForecast& forecast, const ModelView& model,
                   const PlanAxes& axes, const SearchLimits& limits, const Rates& rates);

/// The same without the key, where a memory limit is kept with it and not without.
void plan_sequence_for_memory(std::vector<LayerPlan>& layers, PlanForecast& forecast,
                              const ModelView& model, const PlanAxes& axes,
                              const SearchLimits& limits, const Rates& rates);

/// What ranks must have been handed alike.
std::string policies_text(const std::vector<Policy>& policies);

/// What ranks must have planned alike.
std::string plan_text(const std::vector<LayerPlan>& layers, const StagePlan& stages,
                      const ModelView& model);

}  // namespace oslo
