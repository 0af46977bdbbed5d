#include "oslo_cpp/initialize/initialize.h"

#include <ATen/ATen.h>

#include <iostream>
#include <sstream>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/initialize/agreement.h"
#include "oslo_cpp/initialize/check_devices.h"
#include "oslo_cpp/initialize/find_rates.h"
#include "oslo_cpp/initialize/initialize_stages.h"
#include "oslo_cpp/initialize/little_cut.h"
#include "oslo_cpp/initialize/memory_limit.h"
#include "oslo_cpp/initialize/never_seeded.h"
#include "oslo_cpp/initialize/plan_entries.h"
#include "oslo_cpp/initialize/plan_only.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "parallelizers/deferred/deferred_init.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/modules/module_traits.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/engine/kernel_fusion.h"
#include "parallelizers/placement/operators/planned_results.h"
#include "parallelizers/placement/operators/user_rule_registry.h"
#include "parallelizers/plan/apply/apply_plan.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/dry/forward_survey.h"
#include "parallelizers/plan/layers/role.h"
#include "parallelizers/plan/layers/structural_plan.h"
#include "parallelizers/plan/search/automatic_plan.h"
#include "parallelizers/stages/stage_plan.h"

namespace oslo {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

std::vector<LayerPlan> plan_layers(const ModelView& model, const Config& config,
                                   const InitializeOptions& options, const PlanAxes& axes) {
  std::vector<LayerPlan> layers = plannable_layers(model, axes.searched);
  for (LayerPlan& layer : layers) layer.decided |= is_initialized(layer.weight());
  plan_by_structure(layers);
  plan_by_policies(layers, model, options.policies);
  plan_by_patterns(layers, config.values().plan);
  check_asked(layers, axes);
  follow_ties(layers);
  return layers;
}

c10::Device device_of(const ModelView& model) {
  const auto& parameters = model.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().registered.device();
}

/// Plans again by what the example's forward would take, and tells what it expects. Where it cannot
/// be run on shapes the plan stays as it is and says so; an example that cannot be run at all is an
/// error.
PlanForecast plan_by_example(std::vector<LayerPlan>& layers, const ModelView& model,
                             const PlanAxes& axes, const InitializeOptions& options,
                             const Rates& rates, bool tells) {
  const auto& example = options.example_inputs;
  const std::vector<LayerPlan> before = layers;
  std::string reason;
  FirstWrites writes;
  try {
    const PlanSearch search =
        plan_automatically(layers, model, axes, example, writes, options.cut_own_parameters, rates,
                           options.memory_limit);
    forget_computed(layers, search.computed);
    for (LayerPlan& layer : layers) {
      if (layer.asked_for || search.value_readers.empty()) continue;
      layer.why +=
          "; the forward read values, zeros in the search, by " + search.value_readers.front();
    }
    const DryCost& cost = search.found;
    return {cost.seconds,    cost.waiting,         search.one_device, cost.parameter_bytes,
            cost.kept_bytes, options.memory_limit, rates.machine};
  } catch (const PlanMismatch& error) {
    fail_as(ErrorKind::config, "initialize: example_inputs: ", error.what());
  } catch (const std::exception& error) {
    reason = first_line(message_of(error));
    layers = before;
    for (LayerPlan& layer : layers) {
      if (layer.asked_for) continue;
      layer.why += "; by structure, as the example could not be run on shapes: " + reason;
    }
  }
  writes.check();
  OSLO_CHECK(!is_deferred(model), "initialize: example_inputs could not be run on shapes (", reason,
             "), and a model that was constructed under DeferredInit has no content to run it on; "
             "construct it without, or leave example_inputs out");
  check_limit_is_seen(options.memory_limit, reason);
  std::vector<MemberKeeper::Computed> computed;
  try {
    computed = try_example(model, example, writes);
  } catch (const std::exception& error) {
    writes.check();
    fail_as(kind_of(error), "initialize: example_inputs threw: ", first_line(message_of(error)));
  }
  set_computed(layers, computed);
  forget_computed(layers, computed);
  if (tells) {
    std::cerr << "oslo: planned by names and shapes alone, as example_inputs could not be run on "
                 "shapes: " +
                     reason + "\n";
  }
  return {};
}

/// Throws when an earlier initialize cut some of the model's parameters over other ranks.
void check_decided_over(const ModelView& model, const MeshPtr& mesh) {
  for (const NamedTensor& parameter : model.in_use()) {
    const Mark* mark = mark_of(parameter.tensor);
    OSLO_CHECK(mark == nullptr || over_same_ranks(mark->layout->mesh(), mesh),
               "initialize: ", parameter.name,
               " is cut already, by an initialize over other tensor ranks; models that share a "
               "layer need the same tensor_parallel_size");
  }
}

/// Throws where a module of the model runs on one pipeline stage only.
void check_takes_stages(const ModelView& model) {
  for (const ModuleView& each : model.modules()) {
    const auto* traits = dynamic_cast<const ModuleTraits*>(each.module.get());
    const std::string reason = traits == nullptr ? "" : traits->no_stages();
    OSLO_CHECK(reason.empty(), "initialize: ", each.path.empty() ? "the model" : each.path, ": ",
               reason);
  }
}

/// What ranks must have planned alike.
std::string plan_text(const std::vector<LayerPlan>& layers, const StagePlan& stages,
                      const ModelView& model) {
  std::string text = stages.tensors.empty() ? "" : stages.to_string(model);
  for (const LayerPlan& layer : layers) {
    text += c10::str(layer.path, ": ", layer.style.name(), " ",
                     layer.weight_placement().to_string(), use_text(layer.use));
    for (const auto& [axis, style] : layer.other_styles) {
      text +=
          c10::str("; ", axis, " ", layer.weight_placement(style).to_string(), use_text(style.use));
    }
    text += "\n";
  }
  return text;
}

/// What ranks must agree on beside the config; without an example on one rank, the others would
/// wait for it.
std::string options_text(const InitializeOptions& options, const ModelView& model) {
  std::ostringstream text;
  text << (options.example_inputs ? "example_inputs" : "no example_inputs") << "\n"
       << "random_mode " << static_cast<int>(options.random_mode) << "\n"
       << "seed " << options.seed << "\n"
       << "cut_own_parameters " << options.cut_own_parameters << "\n"
       << "memory_limit " << options.memory_limit << "\n"
       << "axes " << factors(options.axes) << "\n";
  for (const Policy& policy : options.policies) {
    text << "a policy for " << policy.class_name;
    for (const auto& [pattern, style] : policy.patterns) text << ", " << pattern << ": " << style;
    text << "\n";
  }
  text << user_rules_text() << options.stages.to_string(model);
  return text.str();
}

/// Of named axes, where there are any, else of the config's sizes.
MpuOptions grid_options(const ParallelSizes& sizes, const Config& config,
                        const std::vector<Axis>& axes) {
  if (axes.empty() || !sizes.enabled) {
    return MpuOptions()
        .tensor_parallel_size(sizes.tensor)
        .pipeline_parallel_size(sizes.pipeline)
        .data_parallel_size(sizes.data)
        .rank_order(sizes.rank_order);
  }
  const ConfigValues& values = config.values();
  const bool sized = sizes.tensor > 1 || sizes.pipeline > 1 || values.data_parallel_size ||
                     sizes.rank_order != RankOrder::pp_dp_tp;
  OSLO_CHECK(!sized, "initialize: the grid is given twice, by InitializeOptions::axes (",
             factors(axes), ") and by the config's sizes or rank_order; use one of the two");
  return MpuOptions().axes(axes);
}

/// A config's micro-batches are those of a PipelineSchedule: DistributedDataParallel has none.
void refuse_undivided_batches(const MPU& mpu, const ConfigValues& values) {
  if (values.num_accumulation_steps == 1) return;
  auto* group = dynamic_cast<CountedProcessGroup*>(mpu.group("data")->process_group().get());
  if (group == nullptr) return;
  const char* key = values.dialect == ConfigDialect::libai ? "train." : "";
  group->refuse_undivided(c10::str(
      "DistributedDataParallel: '", key,
      "num_accumulation_steps' = ", values.num_accumulation_steps,
      " in the config, by which an oslo::PipelineSchedule divides a batch, and this forward would "
      "take it whole; train with oslo::PipelineSchedule and the model itself, or divide batches by "
      "hand, the first ones under ddp.no_sync(), or set it to 1"));
}

MpuOptions::PrepareMesh prepared(c10::Device device, const ConfigValues& values) {
  return [stages = prepared_for_stages(device, pipeline_shape(values)),
          fusion = values.kernel_fusion](Mesh& mesh, const std::shared_ptr<Group>& pipeline) {
    stages(mesh, pipeline);
    if (fusion) mesh.fusion = std::make_shared<KernelFusion>();
  };
}

}  // namespace

ParallelModel initialize(ModulePtr model, const Config& config, const InitializeOptions& options) {
  OSLO_CHECK(model, "initialize: the model is null");
  const World world = options.world.defined() ? options.world : World::from_environment();
  agree_on_text(world, "initialize: the config", config.to_string(),
                "start every rank with the same config");
  ModelView view(model);
  ParallelSizes sizes;
  MpuOptions mpu_options;
  std::string said;
  TakenFromFirst taken;
  agree_on_success(world, "initialize", [&] {
    sizes = config.resolve(world.size());
    mpu_options = grid_options(sizes, config, options.axes)
                      .backend(sizes.backend)
                      .random_mode(options.random_mode)
                      .seed(options.seed)
                      .prepare_mesh(prepared(device_of(view), config.values()));
    const int stages = mpu_options.grid(world.size()).size("pipeline");
    if (stages > 1) check_takes_stages(view);
    check_search_limits({options.memory_limit, options.rates, options.example_inputs}, stages);
    OSLO_CHECK(
        !is_all_initialized(view),
        "initialize: this model is parallel already; initialize it once, on the whole model");
    if (sizes.enabled) check_devices(view);
    OSLO_CHECK(!DeferredInit::active(),
               "initialize under oslo::DeferredInit; let the guard end first");
    check_fillable(view);
    said = options_text(options, view);
  });
  if (sizes.timeout) world.set_timeout(*sizes.timeout);
  if (sizes.enabled) {
    agree_on_text(world, "initialize: InitializeOptions", said, "pass the same on every rank");
    const RankGrid grid = mpu_options.grid(world.size());
    taken = agree_on_model(world, grid, view, default_generators(view));
  }
  MPU mpu(world, mpu_options);
  refuse_undivided_batches(mpu, config.values());
  if (!sizes.enabled) {
    if (!world.plan_only()) fill(view);
    ParallelModel whole(std::move(model), std::move(mpu), config, {});
    if (world.plan_only()) print_plan_and_exit(whole);
    return whole;
  }

  std::vector<LayerPlan> layers;
  StagePlan stages;
  const bool pipeline = mpu.size("pipeline") > 1;
  std::vector<double> stage_seconds;
  const PlanAxes axes(mpu.grid());
  Rates rates;
  if ((axes.ranks() > 1 || pipeline) && options.example_inputs) {
    rates = find_rates(mpu, sizes.backend, device_of(view), options.rates);
  }
  PlanForecast forecast;
  agree_on_success(world, "the plan", [&] {
    check_decided_over(view, mpu.tensor_mesh());
    layers = plan_layers(view, config, options, axes);
    stages = stages_of(view, config, options.stages, mpu.size("pipeline"));
    if (axes.ranks() == 1 && !pipeline) {
      check_memory_of_one_rank(view, layers,
                               {options.memory_limit, options.rates, options.example_inputs});
      return;
    }
    check_divides(layers, mpu.tensor_mesh());
    if (axes.ranks() > 1 && options.example_inputs) {
      forecast = plan_by_example(layers, view, axes, options, rates, world.rank() == 0);
      check_memory_limit(forecast);
    }
    stage_seconds = finish_stages(
        stages, {view, config, options.stages, layers, axes, options.example_inputs, rates},
        world.rank() == 0);
    check_cuttable(layers, view, stages.tensors);
  });
  if ((axes.ranks() > 1 || pipeline) && options.example_inputs) {
    agree_on_text(world, "initialize: the plan", plan_text(layers, stages, view),
                  "hand initialize example inputs of the same shapes on every rank");
  }
  if (taken.any()) {
    if (world.rank() == 0) std::cerr << told_of(taken) << std::endl;
    take_from_first(taken, mpu, view, default_generators(view));
  }
  if (axes.ranks() > 1 || pipeline) {
    cut_parameters(layers, mpu.tensor_mesh(), stages.tensors);
    cut_unused_parameters(layers, view);
    place_on_stages(view, mpu.tensor_mesh(), stages.tensors);
    keep_gradients_whole(view);
  }
  if (!world.plan_only()) fill(view);
  for (const LayerPlan& layer : layers) {
    if (layer.computed) set_computed(layer.weight());
  }
  set_initialized(view);
  auto entries = entries_of(view, layers);
  if (axes.ranks() > 1 && world.rank() == 0) {
    const std::string line =
        little_cut(entries, layers, axes.ranks(), static_cast<bool>(options.example_inputs),
                   options.cut_own_parameters);
    if (!line.empty()) std::cerr << line << std::endl;
  }
  std::shared_ptr<const ForwardSurveys> surveys;
  if (mpu.tensor_mesh()->stage_ranks.several() && options.example_inputs) {
    surveys = std::make_shared<ForwardSurveys>(survey_forward(
        stages.tensors, mpu.tensor_mesh()->stage_ranks, view, axes, options.example_inputs));
  }
  PlanPipeline told = pipeline_of(stages, std::move(stage_seconds));
  Config saved = saved_config(config, told);
  ParallelModel parallel(std::move(model), std::move(mpu), std::move(saved), std::move(entries),
                         std::move(forecast), static_cast<bool>(options.example_inputs),
                         std::move(told), std::move(surveys));
  if (world.plan_only()) print_plan_and_exit(parallel);
  return parallel;
}

}  // namespace oslo
