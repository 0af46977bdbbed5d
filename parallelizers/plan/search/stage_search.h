#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/stages/balance.h"
#include "parallelizers/stages/stage_map.h"

namespace oslo {

/// What a run of an example tells of pipeline stages.
struct StageUses {
  /// Why the example could not be run on shapes; empty where it was.
  std::string reason;
  /// Seconds of the operators and collectives of a step, by the stages that run them; empty where
  /// it could not be run.
  std::vector<UnitCost> work;
};

/// Finds the parameters and buffers that `example`, a forward, uses on stages which do not have
/// them (a head that is the transposed embedding, tables that every layer reads), and adds those
/// stages to `stages`: each computes with a copy of its own. What it writes there (running
/// statistics) goes to the last of them, and is on no other. The forward is run on shapes
/// (dry_run.h) with `layers` cut as planned over `axes`, and timed by `rates`. No communication:
/// the same on all ranks.
StageUses add_used_stages(StageMap& stages, std::vector<LayerPlan> layers, const ModelView& model,
                          const PlanAxes& axes, const std::function<void()>& example,
                          const Rates& rates = Rates::nominal());

/// A run over stages that are settled: each value is handed to the stages that use it.
void run_over_stages(DryRun& run, const ModelView& model, std::vector<LayerPlan>& layers);

}  // namespace oslo
