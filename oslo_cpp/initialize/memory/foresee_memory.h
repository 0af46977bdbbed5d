#pragma once

#include "oslo_cpp/config/config_values.h"
#include "oslo_cpp/initialize/memory/survey_memory.h"
#include "parallelizers/plan/report/plan_report.h"

namespace oslo {

/// What a step is expected to hold, where the config has a budget of memory or `oslo plan --memory`
/// asks (`only_plans`). Throws where a rank would hold more than the budget although everything is
/// computed again, naming the least. Over pipeline stages nothing is refused: what each needs its
/// own first step shows. With `amp`, whose activations are smaller than those of a run on shapes,
/// the model and its optimizer alone are compared. `model.segments` are found here.
PlanMemory foresee_memory(SurveyedModel model, const ConfigValues& values, int64_t memory_limit,
                          bool only_plans);

}  // namespace oslo
