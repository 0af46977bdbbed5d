#pragma once

#include <functional>
#include <optional>
#include <string>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/pipeline/crossing/forward_writes.h"
#include "parallelizers/pipeline/schedule/order/graph.h"
#include "parallelizers/placement/residency/stage_ranks.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/stages/stage_map.h"

namespace oslo {

/// What the stages of a model need of each other in one forward
/// (pipeline/crossing/forward_order.h).
struct ForwardSurvey {
  /// Which stages' actions hand values to which. A read stands for an action that waits inside for
  /// what a later one sends.
  pipeline::Graph graph;
  /// Why no list can run it where a rank has several stages; empty: nothing is known against it.
  std::string refusal;
  /// What the forward writes of the model, and where.
  ForwardWrites writes;
};

/// Where a rank has several stages: of a forward on the two ways to go on behind a look at a value
/// (see ForwardOrder). Nothing where it cannot be run on shapes.
struct ForwardSurveys {
  std::optional<ForwardSurvey> leaving, standing;
};

/// From a run of the forward on shapes. `ranks` says where stages are; the run itself moves nothing
/// and leaves no trace. Nothing where the forward cannot be run on shapes. What it reads there are
/// zeros, so that a forward that branches on values is seen on one of its ways. `stands_at_reads`:
/// see ForwardOrder.
std::optional<ForwardSurvey> survey_forward(const StageMap& stages, const StageRanks& ranks,
                                            const ModelView& model, const PlanAxes& axes,
                                            const std::function<void()>& forward,
                                            bool stands_at_reads);
ForwardSurveys survey_forward(const StageMap& stages, const StageRanks& ranks,
                              const ModelView& model, const PlanAxes& axes,
                              const std::function<void()>& forward);

}  // namespace oslo
