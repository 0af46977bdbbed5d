#pragma once

#include <functional>
#include <vector>

#include "mpu/grid/mpu.h"
#include "oslo_cpp/config/config.h"
#include "parallelizers/placement/layout/context.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/plan_axes.h"
#include "parallelizers/plan/report/plan_report.h"
#include "parallelizers/stages/stage_plan.h"

namespace oslo {

// What initialize does for a pipeline.

/// Says in the context of a model on `device` where its values live along a pipeline. Nothing to
/// say for a pipeline of one rank.
void put_on_stages(ModelContext& context, const std::shared_ptr<Group>& pipeline, at::Device device,
                   const PipelineShape& shape);

/// What modules (their `layer_idx`), the model's class and the options say of stages; the options
/// alone where there is one.
StageAssignment assigned_stages(const ModelView& model, const StageAssignment& of_class,
                                const StageAssignment& of_options, int pipeline_ranks);

/// The stages of all parameters and buffers, as the config and `assigned` say, before any are
/// balanced; in a pipeline of one rank none in particular. Throws what `plan_stages` throws, and
/// for a saved config of another pipeline.
StagePlan stages_of(const ModelView& model, const Config& config, const StageAssignment& assigned,
                    int pipeline_ranks);

/// What initialize knows of a model when it divides it over stages.
struct StagedModel {
  const ModelView& model;
  const Config& config;
  const StageAssignment& assigned;
  const std::vector<LayerPlan>& layers;
  const PlanAxes& axes;
  const std::function<void()>& example;
  const Rates& rates;
};

/// Balances the layers where the config says so ("balance_stages"); then adds the stages on which
/// the example's forward uses what other stages have. Returns what each stage computes, in seconds;
/// empty without an example. With `tells`, says on the standard error why that could not be seen.
std::vector<double> finish_stages(StagePlan& plan, const StagedModel& of, bool tells);

/// What the plan tells of them.
PlanPipeline pipeline_of(const StagePlan& plan, std::vector<double> seconds);

/// The config as it is saved: with the stages that the layers have.
Config saved_config(const Config& config, const PlanPipeline& pipeline);

}  // namespace oslo
