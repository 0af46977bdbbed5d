#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/report/plan_report.h"

namespace oslo {

/// Of `InitializeOptions`, what a search for a plan reads.
struct SearchLimits {
  int64_t memory_limit = 0;
  std::string rates;
  std::function<void()> example;
};

/// Throws `Error` for options that nothing would read: a `memory_limit` or `rates` without an
/// example, a limit below 0, or one of a model on several pipeline stages, of which each would need
/// its own forecast.
void check_search_limits(const SearchLimits& options, int pipeline_ranks);

/// Throws where the plan expects a rank to need more memory than the user allows.
void check_memory_limit(const PlanForecast& forecast);
bool keeps_memory_limit(const PlanForecast& forecast);  ///< true without a limit

/// The same of a model that no rank cuts, by one run of the example on shapes. Nothing without a
/// limit.
void check_memory_of_one_rank(const ModelView& model, const std::vector<LayerPlan>& layers,
                              const SearchLimits& options);

/// Throws where there is a limit (not 0) that nothing can be compared with, as the example could
/// not be run on shapes.
void check_limit_is_seen(int64_t memory_limit, const std::string& reason);

}  // namespace oslo
