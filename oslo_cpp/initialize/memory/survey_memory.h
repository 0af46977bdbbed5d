#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "oslo_cpp/config/config_values.h"
#include "parallelizers/memory/budget/step_profile.h"
#include "parallelizers/memory/offload/offload_scope.h"
#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/dry/step_forecast.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/stages/stage_map.h"

namespace torch::optim {
class Optimizer;
}

namespace oslo {

/// A model as it is planned, and how a step will run it.
struct SurveyedModel {
  const ModelView& model;
  const std::vector<LayerPlan>& layers;
  const PlanAxes& axes;
  std::vector<SegmentLayers> segments;
  std::function<void()> example;             ///< may be empty
  const torch::optim::Optimizer* optimizer;  ///< null: AdamW
  StageMap tensors = {};                     ///< of a pipeline
  int stages = 1;
  std::vector<int> in_flight = {1};            ///< forwards that a stage holds at a time
  bool half_forward = false;                   ///< by `amp`, which runs on shapes do not see
  std::optional<OffloadOptions> offload = {};  ///< where the config moves activations to the host
};

/// Of each of so many stages: how many forwards it holds at a time, by the config's schedule and
/// number of micro-batches.
std::vector<int> forwards_in_flight(const ConfigValues& values, int stages);

/// What a rank of one stage holds in a step.
struct StageSurvey {
  StepBase base;
  StepProfile profile;               ///< with everything computed again
  std::optional<StepProfile> moved;  ///< with activations moved to the host, as the config has it
};

/// As far as it can be known before a step ran: by a run of the example on shapes, or else of the
/// model and its optimizer alone. One a stage.
std::vector<StageSurvey> survey_memory(const SurveyedModel& of);

}  // namespace oslo
