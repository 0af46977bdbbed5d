#include "oslo_cpp/initialize/initialize.h"

#include <ATen/ATen.h>

#include <iostream>
#include <optional>
#include <sstream>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/config/engine_keys.h"
#include "oslo_cpp/config/grid_options.h"
#include "oslo_cpp/config/precision_of.h"
#include "oslo_cpp/explain/explained_plan.h"
#include "oslo_cpp/explain/strict_gathers.h"
#include "oslo_cpp/initialize/agreement.h"
#include "oslo_cpp/initialize/checks/check_devices.h"
#include "oslo_cpp/initialize/checks/check_model.h"
#include "oslo_cpp/initialize/find_rates.h"
#include "oslo_cpp/initialize/initialize_again.h"
#include "oslo_cpp/initialize/initialize_stages.h"
#include "oslo_cpp/initialize/little_cut.h"
#include "oslo_cpp/initialize/memory/foresee_memory.h"
#include "oslo_cpp/initialize/memory/memory_limit.h"
#include "oslo_cpp/initialize/memory/memory_observer.h"
#include "oslo_cpp/initialize/model_context.h"
#include "oslo_cpp/initialize/never_seeded.h"
#include "oslo_cpp/initialize/plan_entries.h"
#include "oslo_cpp/initialize/plan_layers.h"
#include "oslo_cpp/initialize/plan_only.h"
#include "oslo_cpp/initialize/sharded/shard_weights.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "oslo_cpp/model/model_chunks.h"
#include "parallelizers/deferred/deferred_init.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/placement/operators/user_rule_registry.h"
#include "parallelizers/plan/apply/apply_plan.h"
#include "parallelizers/plan/apply/master_weights.h"
#include "parallelizers/plan/apply/wide_gradients.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/dry/forward_survey.h"
#include "parallelizers/plan/search/context_plan.h"
#include "parallelizers/plan/search/grid_plan.h"
#include "parallelizers/plan/search/joined_sums.h"

namespace oslo {
namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

/// One call of `initialize` on this rank. Its methods are the stages, each called once, in the
/// order in which they stand here; what one finds out, the next ones go on with.
class Initialization {
 public:
  Initialization(ModulePtr model, const Config& config, const InitializeOptions& options,
                 const AuthorTypes& types, TrainedBy by)
      : model_(std::move(model)),
        config_(config),
        options_(options),
        types_(types),
        by_(by),
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
  bool strict() const { return options_.strict || config_.values().strict; }
  /// Whether data ranks keep a part of each weight.
  bool shards_weights() const {
    return config_.values().zero_optimization && config_.values().zero_stage == 3;
  }
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
  void explain();
  void plan_together(const Rates& rates);
  void tell_little_cut(const std::vector<PlanEntry>& entries) const;
  std::shared_ptr<const ForwardSurveys> surveys() const;

  ModulePtr model_;
  const Config& config_;
  const InitializeOptions& options_;
  const AuthorTypes& types_;
  const TrainedBy by_;
  const World world_;
  const ModelView view_;

  // Agreed on.
  ParallelSizes sizes_;
  MpuOptions mpu_options_;
  StageAssignment assigned_;
  std::string asked_;  ///< the options as text
  TakenFromFirst taken_;
  std::optional<MPU> mpu_;
  ContextPtr context_;
  std::shared_ptr<ModelContext> sharded_;  ///< of weights' parts; null: replicas have none

  // Planned.
  std::optional<PlanAxes> axes_;
  std::vector<LayerPlan> layers_;
  StagePlan stages_;
  std::vector<double> stage_seconds_;
  PlanForecast forecast_;
  ExplainedPlan explained_;
};

/// What ranks must agree on beside the config; without an example on one rank, the others would
/// wait for it.
std::string options_text(const InitializeOptions& options, const StageAssignment& assigned,
                         const ModelView& model) {
  std::ostringstream text;
  text << (options.example_inputs ? "example_inputs" : "no example_inputs") << "\n"
       << "random_mode " << static_cast<int>(options.random_mode) << "\n"
       << "seed " << options.seed << "\n"
       << "strict " << options.strict << "\n"
       << "cut_own_parameters " << options.cut_own_parameters << "\n"
       << "memory_limit " << options.memory_limit << "\n"
       << "axes " << factors(options.axes) << "\n"
       << policies_text(options.policies) << user_rules_text() << assigned.to_string(model);
  return text.str();
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
  const EngineKeys& engine = config_.values().engine;
  by_ == TrainedBy::engine ? check_handlers_average(engine, sizes_) : check_no_engine_keys(engine);
  mpu_options_ = grid_options(sizes_, config_, options_.axes)
                     .backend(sizes_.backend)
                     .random_mode(options_.random_mode)
                     .seed(options_.seed);
  const RankGrid grid = mpu_options_.grid(world_.size());
  if (enabled()) check_zero_keys(config_.values(), grid.size("data"));
  if (enabled() && shards_weights()) {
    mpu_options_.data_shard_size(config_.values().zero_shard_size.value_or(1));
  }
  const int stages = grid.size("pipeline");
  if (stages > 1) check_takes_stages(view_);
  assigned_ = assigned_stages(view_, options_.class_stages, options_.stages, stages);
  check_search_limits(limits(), stages);
  OSLO_CHECK(!is_all_initialized(view_),
             "initialize: this model is parallel already; initialize it once, on the whole model");
  if (enabled()) check_devices(view_);
  if (enabled()) check_precision(precision_of(config_.values()), device_of(view_));
  if (enabled() && config_.values().master_weights) check_kept_in_fp32(view_);
  if (enabled()) check_saves_memory(view_, config_.values());
  OSLO_CHECK(!DeferredInit::active(),
             "initialize under oslo::DeferredInit; let the guard end first");
  check_fillable(view_);
  asked_ = options_text(options_, assigned_, view_);
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
  explain();
}

/// Of the plan that ranks have agreed on. With `strict` a gather in it is refused.
void Initialization::explain() {
  if (!has_example()) return;
  if (!cuts_layers()) return explained_.nothing_is_cut();
  explained_.explain(view_, layers_, stages_.tensors, *axes_, options_.example_inputs);
  if (strict()) agree_on_success(world_, "the plan", [&] { explained_.refuse_gathers(); });
}

void Initialization::plan_together(const Rates& rates) {
  check_decided_over(view_, context_);
  if (shards_weights()) {
    check_shards_weights(view_, *mpu_, config_.values());
    check_all_cuttable(view_);
  }
  layers_ = plan_layers(view_, config_.values().plan, options_.policies, *axes_);
  stages_ = stages_of(view_, config_, assigned_, mpu_->size("pipeline"));
  if (saves_memory(config_.values())) check_markable(view_);
  if (!divides()) {
    if (context_->follows()) check_free_of_graphs(view_);
    check_memory_of_one_rank(view_, layers_, limits());
    return foresee();
  }
  check_divides(layers_, context_);
  if (sizes_.over_grid()) {
    // A segment that is computed again gathers anew by itself.
    const bool keeps = config_.values().keep_gathered || config_.values().activation_checkpoint;
    cut_over_grid(layers_, view_, *axes_, options_.example_inputs, rates, keeps);
  }
  cut_context(layers_, view_, *axes_, options_.example_inputs, rates,
              config_.values().context_order);
  if (cuts_layers() && has_example()) {
    forecast_ = plan_by_example(layers_, view_, *axes_, limits(), options_.cut_own_parameters,
                                rates, leads());
  }
  if (cuts_layers() && config_.values().sequence_parallel) {
    plan_sequence(layers_, forecast_, view_, *axes_, limits(), rates);
  } else if (cuts_layers() && has_example()) {
    plan_sequence_for_memory(layers_, forecast_, view_, *axes_, limits(), rates);
  }
  if (cuts_layers() && has_example()) check_memory_limit(forecast_);
  stage_seconds_ = finish_stages(
      stages_, {view_, config_, assigned_, layers_, *axes_, options_.example_inputs, rates},
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
  if (saves_memory(config_.values())) mark_whole(view_, context_);
  if (shards_weights()) {
    sharded_ = shard_weights(view_, *mpu_, config_.values(), context_, [&](ModelContext& shared) {
      put_on_stages(shared, mpu_->pipeline_group(), context_->device(),
                    pipeline_shape(config_.values()));
    });
  }
  if (marks) keep_gradients_whole(view_);
}

void Initialization::fill() {
  if (!world_.plan_only()) {
    fill_shared_weights(view_);
    oslo::fill(view_);
  }
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
  // No rank leaves before the last run of the example: runs put the default generators back, from
  // which ranks that are threads may draw as soon as they have left.
  std::shared_ptr<const ForwardSurveys> seen;
  if (enabled() && has_example()) {
    agree_on_success(world_, "initialize", [&] { seen = surveys(); });
  }
  if (enabled() && saves_memory(config_.values())) {
    const auto observer =
        memory_observer(view_, config_.values(), options_.memory_limit, device_of(view_));
    context_of(mpu_->tensor_mesh())->observer = observer;
    if (sharded_) sharded_->observer = observer;
    const std::string word = saves_nothing(config_.values(), device_of(view_));
    if (leads() && !world_.plan_only() && !word.empty()) std::cerr << word << std::endl;
  }
  Config saved = enabled() ? saved_config(config_, pipeline) : config_;
  ParallelModel parallel(std::move(model_), std::move(*mpu_), std::move(saved), std::move(entries),
                         std::move(forecast_), enabled() && has_example(), std::move(pipeline),
                         std::move(seen));
  std::shared_ptr<Explanation> explanation = explained_.told(
      context_->precision.autocast.has_value(), config_.values().activation_checkpoint);
  parallel.set_class_stages(options_.class_stages);
  parallel.set_explanation(std::move(explanation), explained_.why_not());
  if (strict())
    context_of(parallel.mpu().tensor_mesh())->gather_watch = std::make_shared<StrictGathers>();
  if (world_.plan_only()) print_plan_and_exit(parallel);
  return parallel;
}

/// On rank 0's standard error, where less is cut than one would think.
void Initialization::tell_little_cut(const std::vector<PlanEntry>& entries) const {
  const int ranks = axes_->ranks_of_weights();
  if (ranks == 1 || !leads()) return;
  const std::string line =
      little_cut(entries, layers_, ranks, has_example(), options_.cut_own_parameters);
  if (!line.empty()) std::cerr << line << std::endl;
}

/// Where the example's forward goes, for ranks with several stages.
std::shared_ptr<const ForwardSurveys> Initialization::surveys() const {
  if (!context_->stage_ranks().several()) return nullptr;
  return std::make_shared<ForwardSurveys>(survey_forward(stages_.tensors, context_->stage_ranks(),
                                                         view_, *axes_, options_.example_inputs));
}

}  // namespace

ParallelModel initialize(ModulePtr model, const Config& config, const InitializeOptions& options) {
  return initialize_again(std::move(model), config, options, {});
}

ParallelModel initialize_again(ModulePtr model, const Config& config,
                               const InitializeOptions& options, const AuthorTypes& types,
                               TrainedBy by) {
  LayerSegments::end_open();  // of another model, whose parameters were looked at
  OSLO_CHECK(model, "initialize: the model is null");
  const Config own = with_chunks_of(*model, config);
  Initialization made(std::move(model), own, options, types, by);
  made.agree();
  if (made.enabled()) {
    made.plan();
    made.cut();
  }
  made.fill();
  return made.tell();
}

}  // namespace oslo
