#include "oslo_cpp/initialize/initialize.h"

#include <ATen/ATen.h>

#include <iostream>
#include <optional>
#include <sstream>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/config/grid_options.h"
#include "oslo_cpp/config/precision_of.h"
#include "oslo_cpp/initialize/agreement.h"
#include "oslo_cpp/initialize/check_devices.h"
#include "oslo_cpp/initialize/find_rates.h"
#include "oslo_cpp/initialize/initialize_again.h"
#include "oslo_cpp/initialize/initialize_stages.h"
#include "oslo_cpp/initialize/little_cut.h"
#include "oslo_cpp/initialize/memory/foresee_memory.h"
#include "oslo_cpp/initialize/memory/memory_limit.h"
#include "oslo_cpp/initialize/memory/recompute_layers.h"
#include "oslo_cpp/initialize/never_seeded.h"
#include "oslo_cpp/initialize/plan_entries.h"
#include "oslo_cpp/initialize/plan_layers.h"
#include "oslo_cpp/initialize/plan_only.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "parallelizers/deferred/deferred_init.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/modules/module_traits.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/weight_casts.h"
#include "parallelizers/placement/engine/kernel_fusion.h"
#include "parallelizers/placement/operators/user_rule_registry.h"
#include "parallelizers/plan/apply/apply_plan.h"
#include "parallelizers/plan/apply/master_weights.h"
#include "parallelizers/plan/apply/wide_gradients.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/dry/forward_survey.h"
#include "parallelizers/plan/search/joined_sums.h"

namespace oslo {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

/// One call of `initialize` on this rank. Its methods are the stages, each called once, in the
/// order in which they stand here; what one finds out, the next ones go on with.
class Initialization {
 public:
  Initialization(ModulePtr model, const Config& config, const InitializeOptions& options,
                 const AuthorTypes& types)
      : model_(std::move(model)),
        config_(config),
        options_(options),
        types_(types),
        world_(options.world.defined() ? options.world : World::from_environment()),
        view_(model_) {}

  /// The ranks have the same config, options and model, and make their groups.
  void agree();
  /// Whether the config asks for a parallel model at all; else nothing is planned or cut.
  bool enabled() const { return sizes_.enabled; }
  /// How each layer is cut and where it lies, alike on all ranks. Changes nothing of the model.
  void plan();
  /// Puts this rank's parts in the place of parameters and buffers.
  void cut();
  /// Gives content to what was constructed under DeferredInit.
  void fill();
  /// What the caller gets; for `oslo plan` it is printed, and the program ends.
  ParallelModel tell();

 private:
  bool leads() const { return world_.rank() == 0; }
  bool has_example() const { return static_cast<bool>(options_.example_inputs); }
  bool in_stages() const { return mpu_->size("pipeline") > 1; }
  bool cuts_layers() const { return axes_->ranks() > 1; }
  /// Whether any rank has less than all of the model.
  bool divides() const { return cuts_layers() || in_stages(); }
  SearchLimits limits() const {
    // Where activations are computed again the limit is a budget, which is kept while training.
    const bool budget = config_.values().activation_checkpoint;
    return {budget ? 0 : options_.memory_limit, options_.rates, options_.example_inputs};
  }

  void check_asked();
  void make_groups();
  void foresee();
  void plan_together(const Rates& rates);
  void tell_little_cut(const std::vector<PlanEntry>& entries) const;
  std::shared_ptr<const ForwardSurveys> surveys() const;

  ModulePtr model_;
  const Config& config_;
  const InitializeOptions& options_;
  const AuthorTypes& types_;
  const World world_;
  const ModelView view_;

  // Agreed on.
  ParallelSizes sizes_;
  MpuOptions mpu_options_;
  std::string asked_;  ///< the options as text
  TakenFromFirst taken_;
  std::optional<MPU> mpu_;
  ContextPtr context_;

  // Planned.
  std::optional<PlanAxes> axes_;
  std::vector<LayerPlan> layers_;
  StagePlan stages_;
  std::vector<double> stage_seconds_;
  PlanForecast forecast_;
};

c10::Device device_of(const ModelView& model) {
  const auto& parameters = model.parameters();
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().registered.device();
}

/// Throws when an earlier initialize cut some of the model's parameters over other ranks.
void check_decided_over(const ModelView& model, const ContextPtr& context) {
  for (const NamedTensor& parameter : model.in_use()) {
    const Mark* mark = mark_of(parameter.tensor);
    OSLO_CHECK(mark == nullptr || over_same_ranks(mark->layout->context(), context),
               "initialize: ", parameter.name,
               " is cut already, by an initialize over other tensor ranks; models that share a "
               "layer need the same tensor_parallel_size");
    OSLO_CHECK(mark == nullptr || mark->layout->context()->precision == context->precision,
               "initialize: ", parameter.name,
               " belongs to a model that was initialized with another 'amp', 'master_weights' or "
               "'reduce_dtype'; models that share a layer need the same");
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

/// What the values of a model on `device` share.
std::shared_ptr<ModelContext> make_context(const MPU& mpu, c10::Device device,
                                           const ConfigValues& values) {
  auto context = context_of(mpu.tensor_mesh());
  put_on_stages(*context, mpu.pipeline_group(), device, pipeline_shape(values));
  if (values.kernel_fusion) context->fusion = std::make_shared<KernelFusion>();
  context->precision = precision_of(values);
  if (context->follows()) {
    context->weight_casts = std::make_shared<WeightCasts>(context->precision.master_weights);
  }
  return context;
}

void Initialization::agree() {
  agree_on_text(world_, "initialize: the config", config_.to_string(),
                "start every rank with the same config");
  agree_on_success(world_, "initialize", [&] { check_asked(); });
  if (sizes_.timeout) world_.set_timeout(*sizes_.timeout);
  if (enabled()) {
    agree_on_text(world_, "initialize: InitializeOptions", asked_, "pass the same on every rank");
    const RankGrid grid = mpu_options_.grid(world_.size());
    taken_ = agree_on_model(world_, grid, view_, default_generators(view_));
  }
  make_groups();
}

void Initialization::check_asked() {
  sizes_ = config_.resolve(world_.size());
  mpu_options_ = grid_options(sizes_, config_, options_.axes)
                     .backend(sizes_.backend)
                     .random_mode(options_.random_mode)
                     .seed(options_.seed);
  const int stages = mpu_options_.grid(world_.size()).size("pipeline");
  if (stages > 1) check_takes_stages(view_);
  check_search_limits(limits(), stages);
  OSLO_CHECK(!is_all_initialized(view_),
             "initialize: this model is parallel already; initialize it once, on the whole model");
  if (enabled()) check_devices(view_);
  if (enabled()) check_precision(precision_of(config_.values()), device_of(view_));
  if (enabled() && config_.values().master_weights) check_kept_in_fp32(view_);
  if (enabled() && config_.values().activation_checkpoint) segments_of(view_, config_.values());
  OSLO_CHECK(!DeferredInit::active(),
             "initialize under oslo::DeferredInit; let the guard end first");
  check_fillable(view_);
  asked_ = options_text(options_, view_);
}

void Initialization::make_groups() {
  mpu_.emplace(world_, mpu_options_);
  context_ = make_context(*mpu_, device_of(view_), config_.values());
  axes_.emplace(mpu_->grid());
  refuse_undivided_batches(*mpu_, config_.values());
  set_travel_type(*mpu_->group("data"), context_->precision);
}

void Initialization::plan() {
  Rates rates;
  const bool searches = divides() && has_example();
  if (searches) rates = find_rates(*mpu_, sizes_.backend, device_of(view_), options_.rates);
  agree_on_success(world_, "the plan", [&] { plan_together(rates); });
  if (searches) {
    agree_on_sums(world_, layers_);
    agree_on_text(world_, "initialize: the plan", plan_text(layers_, stages_, view_),
                  "hand initialize example inputs of the same shapes on every rank");
  }
}

void Initialization::plan_together(const Rates& rates) {
  check_decided_over(view_, context_);
  layers_ = plan_layers(view_, config_.values().plan, options_.policies, *axes_);
  stages_ = stages_of(view_, config_, options_.stages, mpu_->size("pipeline"));
  if (config_.values().activation_checkpoint) check_markable(view_);
  if (!divides()) {
    if (context_->follows()) check_free_of_graphs(view_);
    check_memory_of_one_rank(view_, layers_, limits());
    return foresee();
  }
  check_divides(layers_, context_);
  if (cuts_layers() && has_example()) {
    forecast_ = plan_by_example(layers_, view_, *axes_, limits(), options_.cut_own_parameters,
                                rates, leads());
    check_memory_limit(forecast_);
  }
  stage_seconds_ = finish_stages(
      stages_, {view_, config_, options_.stages, layers_, *axes_, options_.example_inputs, rates},
      leads());
  check_cuttable(layers_, view_, stages_.tensors);
  foresee();
  if (context_->follows()) check_free_of_graphs(view_);
}

/// Of a budget of memory, and of `oslo plan --memory`.
void Initialization::foresee() {
  SurveyedModel of{view_, layers_, *axes_, {}, options_.example_inputs, options_.optimizer};
  of.tensors = stages_.tensors;
  of.stages = in_stages() ? stages_.stages : 1;
  of.half_forward = context_->precision.autocast.has_value();
  forecast_.memory =
      foresee_memory(of, config_.values(), options_.memory_limit, world_.plan_only());
}

void Initialization::cut() {
  if (taken_.any()) {
    if (leads()) std::cerr << told_of(taken_) << std::endl;
    take_from_first(taken_, *mpu_, view_, default_generators(view_));
  }
  if (context_->precision.master_weights) {
    keep_in_fp32(types_, context_);
    const std::string kept = keep_in_fp32(view_, context_);
    if (leads() && !kept.empty()) std::cerr << kept << std::endl;
  }
  if (context_->precision.reduce == c10::kFloat) widen_gradients(view_);
  const bool marks = divides() || context_->follows();
  if (marks) {
    cut_parameters(layers_, context_, stages_.tensors);
    cut_unused_parameters(layers_, view_);
    place_on_stages(view_, context_, stages_.tensors);
  }
  if (config_.values().activation_checkpoint) mark_whole(view_, context_);
  if (marks) keep_gradients_whole(view_);
}

void Initialization::fill() {
  if (!world_.plan_only()) oslo::fill(view_);
  if (!enabled()) return;
  for (const LayerPlan& layer : layers_) {
    if (layer.computed) set_computed(layer.weight());
  }
  set_initialized(view_);
}

ParallelModel Initialization::tell() {
  std::vector<PlanEntry> entries;
  PlanPipeline pipeline;
  if (enabled()) {
    entries = entries_of(view_, layers_);
    tell_little_cut(entries);
    pipeline = pipeline_of(stages_, std::move(stage_seconds_));
  }
  std::shared_ptr<const ForwardSurveys> seen = surveys();
  if (enabled() && config_.values().activation_checkpoint) {
    context_of(mpu_->tensor_mesh())->observer =
        layer_segments(view_, config_.values(), options_.memory_limit, device_of(view_));
  }
  Config saved = enabled() ? saved_config(config_, pipeline) : config_;
  ParallelModel parallel(std::move(model_), std::move(*mpu_), std::move(saved), std::move(entries),
                         std::move(forecast_), enabled() && has_example(), std::move(pipeline),
                         std::move(seen));
  if (world_.plan_only()) print_plan_and_exit(parallel);
  return parallel;
}

/// On rank 0's standard error, where less is cut than one would think.
void Initialization::tell_little_cut(const std::vector<PlanEntry>& entries) const {
  if (!cuts_layers() || !leads()) return;
  const std::string line =
      little_cut(entries, layers_, axes_->ranks(), has_example(), options_.cut_own_parameters);
  if (!line.empty()) std::cerr << line << std::endl;
}

/// Where the example's forward goes, for ranks with several stages.
std::shared_ptr<const ForwardSurveys> Initialization::surveys() const {
  if (!enabled() || !context_->stage_ranks().several() || !has_example()) return nullptr;
  return std::make_shared<ForwardSurveys>(survey_forward(stages_.tensors, context_->stage_ranks(),
                                                         view_, *axes_, options_.example_inputs));
}

}  // namespace

ParallelModel initialize(ModulePtr model, const Config& config, const InitializeOptions& options) {
  return initialize_again(std::move(model), config, options, {});
}

ParallelModel initialize_again(ModulePtr model, const Config& config,
                               const InitializeOptions& options, const AuthorTypes& types) {
  LayerSegments::end_open();  // of another model, whose parameters were looked at
  OSLO_CHECK(model, "initialize: the model is null");
  Initialization made(std::move(model), config, options, types);
  made.agree();
  if (made.enabled()) {
    made.plan();
    made.cut();
  }
  made.fill();
  return made.tell();
}

}  // namespace oslo
