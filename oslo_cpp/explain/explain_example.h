#pragma once

#include <functional>
#include <vector>

#include "oslo_cpp/explain/explanation.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/stages/stage_map.h"

namespace oslo {

struct ExplainedExample {
  Explanation explanation;
  /// Operators that asked for values and were given zeros: training may go another way behind them.
  std::vector<std::string> value_readers;
};

/// Explains the forward that `example` runs, and the backward that would follow, with the layers
/// cut as planned: on shapes, as rank 0, without communication (plan/dry/dry_run.h). What moves
/// between pipeline stages is not in it. Throws what the example throws on shapes.
ExplainedExample explain_example(const ModelView& model, std::vector<LayerPlan> layers,
                                 const StageMap& stages, const PlanAxes& axes,
                                 const std::function<void()>& example);

}  // namespace oslo
