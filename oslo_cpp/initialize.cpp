#include "oslo_cpp/initialize.h"

#include <ATen/ATen.h>

#include <map>
#include <sstream>

#include "mpu/error.h"
#include "oslo_cpp/agreement.h"
#include "oslo_cpp/initialized_tag.h"
#include "parallelizers/placement/mark.h"
#include "parallelizers/plan/apply_plan.h"
#include "parallelizers/plan/example_run.h"
#include "parallelizers/plan/structural_plan.h"
#include "parallelizers/tensor/module_tree.h"
#include "parallelizers/tensor/ties.h"

namespace oslo {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

/// Wishes come in layers: a split asks for blocks, then a view of a block for a unit.
constexpr int kPlanningPasses = 4;

std::vector<LayerPlan> plan_layers(const ModulePtr& model, const Config& config,
                                   const InitializeOptions& options) {
  std::vector<LayerPlan> layers = plannable_layers(model);
  plan_by_structure(layers);
  plan_by_policies(layers, model, options.policies);
  plan_by_patterns(layers, config.values().plan);
  check_asked(layers);
  follow_ties(layers);
  return layers;
}

/// Cuts the parameters, asking the example for better blocks and units until it is content.
void cut_parameters(std::vector<LayerPlan>& layers, const ModulePtr& model, const MPU& mpu,
                    const std::function<void()>& example) {
  AppliedPlan applied(layers, mpu.tensor_mesh());
  if (!example) return;
  try {
    for (int pass = 0; pass < kPlanningPasses; ++pass) {
      mpu.tensor_mesh()->gathers().clear();
      run_example(*model, example, {mpu.random().replicated(), mpu.random().sharded()});
      if (mpu.tensor_mesh()->gathers().calls() == 0 || !applied.take_wishes(layers)) break;
      applied.undo();
      applied = AppliedPlan(layers, mpu.tensor_mesh());
    }
  } catch (const c10::Error& error) {
    applied.undo();
    fail("initialize: example_inputs threw: ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    applied.undo();
    fail("initialize: example_inputs threw: ", error.what());
  }
  mpu.tensor_mesh()->gathers().clear();
  mpu.tensor_group()->ledger().clear();
}

std::string placement_text(const LayerPlan* layer, const at::Tensor& parameter) {
  if (layer == nullptr || mark_of(parameter) == nullptr) return "replicate";
  const bool weight = parameter.dim() > 1;
  const Placement placement = weight ? layer->weight_placement() : layer->bias_placement();
  return to_string(layer->style.style) + ": " + placement.to_string();
}

/// What plan() tells of every parameter.
std::vector<PlanEntry> entries_of(const ModulePtr& model, const std::vector<LayerPlan>& layers,
                                  const std::vector<std::string>& classes_before) {
  std::map<std::string, const LayerPlan*> by_path;
  for (const LayerPlan& layer : layers) by_path[layer.path] = &layer;
  std::map<const c10::TensorImpl*, std::string> first_name;
  std::vector<PlanEntry> entries;
  size_t position = 0;
  for (const ModuleEntry& entry : module_entries(model)) {
    const std::string& before = classes_before[position++];
    const auto found = by_path.find(entry.path);
    const LayerPlan* layer = found == by_path.end() ? nullptr : found->second;
    for (const auto& item : entry.module->named_parameters(/*recurse=*/false)) {
      const at::Tensor& parameter = item.value();
      if (!parameter.defined()) continue;
      const Mark* mark = mark_of(parameter);
      PlanEntry line;
      line.parameter = join_path(entry.path, item.key());
      line.module = entry.path;
      line.module_before = before;
      line.module_after = class_name(*entry.module);
      line.placement = placement_text(layer, parameter);
      line.why = layer != nullptr ? layer->why : "no linear or embedding layer";
      line.local_shape = parameter.sizes().vec();
      line.global_shape = line.local_shape;
      if (mark != nullptr) {
        const auto global = mark->layout->global_sizes(parameter.sizes());
        line.global_shape.assign(global.begin(), global.end());
      }
      line.local_bytes = parameter.numel() * static_cast<int64_t>(parameter.element_size());
      auto& first = first_name[parameter.unsafeGetTensorImpl()];
      if (first.empty()) {
        first = line.parameter;
      } else {
        line.tied_to = first;
      }
      entries.push_back(std::move(line));
    }
  }
  return entries;
}

std::vector<std::string> classes_of(const ModulePtr& model) {
  std::vector<std::string> classes;
  for (const ModuleEntry& entry : module_entries(model))
    classes.push_back(class_name(*entry.module));
  return classes;
}

/// What ranks must agree on beside the config; without an example on one rank, the others would
/// wait for it.
std::string options_text(const InitializeOptions& options) {
  std::ostringstream text;
  text << (options.example_inputs ? "example_inputs" : "no example_inputs") << "\n"
       << "random_mode " << static_cast<int>(options.random_mode) << "\n"
       << "seed " << options.seed << "\n";
  for (const Policy& policy : options.policies) {
    text << "a policy for " << policy.class_name;
    for (const auto& [pattern, style] : policy.patterns) text << ", " << pattern << ": " << style;
    text << "\n";
  }
  return text.str();
}

}  // namespace

ParallelModel initialize(ModulePtr model, const Config& config, const InitializeOptions& options) {
  OSLO_CHECK(model, "initialize: the model is null");
  const World world = options.world.defined() ? options.world : World::from_environment();
  agree_on_text(world, "the config", config.to_string(), "start every rank with the same config");
  ParallelSizes sizes;
  agree_on_success(world, "initialize", [&] {
    sizes = config.resolve(world.size());
    OSLO_CHECK(
        !is_initialized(*model),
        "initialize: this model is parallel already; initialize it once, on the whole model");
  });
  const MpuOptions mpu_options = MpuOptions()
                                     .tensor_parallel_size(sizes.tensor)
                                     .pipeline_parallel_size(sizes.pipeline)
                                     .data_parallel_size(sizes.data)
                                     .rank_order(sizes.rank_order)
                                     .random_mode(options.random_mode)
                                     .seed(options.seed);
  if (sizes.enabled) {
    agree_on_text(world, "InitializeOptions", options_text(options), "pass the same on every rank");
    agree_on_model(world, mpu_options.grid(world.size()), *model);
  }
  MPU mpu(world, mpu_options);
  if (!sizes.enabled) return ParallelModel(std::move(model), std::move(mpu), config, {});

  std::vector<LayerPlan> layers;
  const std::vector<std::string> classes = classes_of(model);
  agree_on_success(world, "the plan", [&] {
    repair_ties(model);
    layers = plan_layers(model, config, options);
    if (sizes.tensor > 1) check_cuttable(layers);
  });
  if (sizes.tensor > 1) {
    cut_parameters(layers, model, mpu, options.example_inputs);
    rewrite_tree(layers);
  }
  set_initialized(*model);
  auto entries = entries_of(model, layers, classes);
  return ParallelModel(std::move(model), std::move(mpu), config, std::move(entries));
}

}  // namespace oslo
