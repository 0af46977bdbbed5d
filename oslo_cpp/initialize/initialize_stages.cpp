#include "oslo_cpp/initialize/initialize_stages.h"

#include <c10/util/StringUtil.h>

#include <iostream>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config_dialects.h"
#include "parallelizers/pipeline/crossing/evaluation_residence.h"
#include "parallelizers/pipeline/run/step_residence.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/plan/search/stage_balance.h"
#include "parallelizers/plan/search/stage_search.h"
#include "parallelizers/stages/balance.h"

namespace oslo {

void put_on_stages(ModelContext& context, const std::shared_ptr<Group>& pipeline, at::Device device,
                   const PipelineShape& shape) {
  if (pipeline->size() == 1) return;
  StageRanks ranks(pipeline::rank_of_stage(shape.kind, pipeline->size(), shape.chunks),
                   pipeline->rank());
  const auto between = std::make_shared<EvaluationResidence>(std::move(ranks), pipeline, device);
  context.set_residence(between, std::make_shared<StepResidence>(*between));
}

namespace {

StageWishes wishes_of(const Config& config, const StageAssignment& assigned, int stages) {
  const ConfigValues& values = config.values();
  StageWishes wishes{stages, values.pipeline_num_layers, values.custom_pipeline_stage_id,
                     values.stages, assigned};
  if (values.actual_pipeline_stage_id) {
    wishes.ids = values.actual_pipeline_stage_id;
    wishes.ids_from = "'" + stage_ids_path(values.dialect, "actual") + "'";
  }
  return wishes;
}

std::string ids_text(const std::vector<int>& ids) {
  return c10::str("[", c10::Join(", ", ids), "]");
}

/// A saved config says for which model and how many stages it was.
void check_saved(const StagePlan& plan, const ConfigValues& values) {
  if (!values.auto_pipeline_stage_id) return;
  std::vector<int> automatic;
  for (const StagePlan::Layer& layer : plan.layers) automatic.push_back(layer.automatic);
  OSLO_CHECK(
      automatic == *values.auto_pipeline_stage_id, "'", stage_ids_path(values.dialect, "auto"),
      "' is ", ids_text(*values.auto_pipeline_stage_id),
      " in the config, which initialize wrote for "
      "another pipeline or model: for ",
      plan.layers.size(), " layers on ", plan.stages, " stages it would be ", ids_text(automatic),
      "; remove it and '", stage_ids_path(values.dialect, "actual"), "'");
}

/// Whether the config leaves it to us, and says by what.
std::optional<std::string> balanced_by(const ConfigValues& values) {
  return values.actual_pipeline_stage_id ? std::nullopt : values.balance_stages;
}

}  // namespace

StageAssignment assigned_stages(const ModelView& model, const StageAssignment& of_class,
                                const StageAssignment& of_options, int pipeline_ranks) {
  using By = StageAssignment::By;
  StageAssignment assigned;
  if (pipeline_ranks > 1) {
    assigned.add(layer_indices(model), By::layer_idx).add(of_class, By::model_class);
  }
  return assigned.add(of_options, By::options);
}

StagePlan stages_of(const ModelView& model, const Config& config, const StageAssignment& assigned,
                    int pipeline_ranks) {
  const ConfigValues& values = config.values();
  if (pipeline_ranks == 1 && values.stages.empty() && assigned.empty()) return {};
  const int stages = pipeline_ranks * pipeline_shape(values).chunks;
  StagePlan plan = plan_stages(model, wishes_of(config, assigned, stages));
  if (pipeline_ranks == 1) return {};
  check_saved(plan, values);
  return plan;
}

std::vector<double> finish_stages(StagePlan& plan, const StagedModel& of, bool tells) {
  if (plan.stages == 1) return {};
  if (const auto by = balanced_by(of.config.values())) {
    OSLO_CHECK(*by != "time" || of.example,
               "'balance_stages' is time, which InitializeOptions::example_inputs shows: give "
               "initialize a forward, or take \"memory\"");
    StageWishes wishes = wishes_of(of.config, of.assigned, plan.stages);
    const PipelineShape shape = pipeline_shape(of.config.values());
    const BalancedModel balanced{
        of.model, of.layers, of.axes, of.example,
        pipeline::rank_of_stage(shape.kind, plan.stages / shape.chunks, shape.chunks)};
    wishes.ids = *by == "time" ? stages_by_time(balanced, wishes, of.rates)
                               : stages_by_memory(balanced, wishes);
    wishes.balanced_by = *by;
    plan = plan_stages(of.model, wishes);
  }
  if (!of.example) return {};
  const StageUses uses =
      add_used_stages(plan.tensors, of.layers, of.model, of.axes, of.example, of.rates);
  if (!uses.reason.empty()) {
    if (tells) {
      std::cerr << "oslo: which parameters several pipeline stages use could not be seen, as "
                   "example_inputs could not be run on shapes: " +
                       uses.reason + "\n";
    }
    return {};
  }
  std::vector<double> seconds;
  for (int stage = 0; stage < plan.stages; ++stage) {
    seconds.push_back(cost_of_units(uses.work, stage, stage + 1));
  }
  return seconds;
}

PlanPipeline pipeline_of(const StagePlan& plan, std::vector<double> seconds) {
  if (plan.stages == 1) return {};
  PlanPipeline pipeline{plan.why, plan.stages, {}, std::move(seconds)};
  for (const StagePlan::Layer& layer : plan.layers) {
    pipeline.layers.push_back({layer.path, layer.automatic, layer.actual});
  }
  return pipeline;
}

Config saved_config(const Config& config, const PlanPipeline& pipeline) {
  if (pipeline.layers.empty()) return config;
  std::vector<int> automatic, actual;
  for (const PlanLayer& layer : pipeline.layers) {
    automatic.push_back(layer.automatic_stage);
    actual.push_back(layer.actual_stage);
  }
  return config.with_stage_ids(automatic, actual);
}

}  // namespace oslo
