#pragma once

#include <functional>
#include <string>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/pipeline/stage_map.h"
#include "parallelizers/plan/layer_plan.h"
#include "parallelizers/plan/plan_axes.h"

namespace oslo {

/// Finds the parameters and buffers that `example`, a forward, uses on stages which do not have
/// them (a head that is the transposed embedding, tables that every layer reads), and adds those
/// stages to `stages`: each computes with a copy of its own. The forward is run on shapes
/// (dry_run.h) with `layers` cut as planned over `axes`. Returns why it could not be run; empty
/// where it was. No communication: the same on all ranks.
std::string add_used_stages(StageMap& stages, std::vector<LayerPlan> layers, const ModelView& model,
                            const PlanAxes& axes, const std::function<void()>& example);

}  // namespace oslo
