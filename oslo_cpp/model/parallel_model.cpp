#include "oslo_cpp/model/parallel_model.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/load/parallel_checkpoint.h"
#include "checkpoint/resume/state_transfer.h"
#include "mpu/base/bytes.h"
#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/explain/step_recorder.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "parallelizers/data/clip_grad_norm.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/memory/offload/offload_layers.h"
#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/plan/apply/undo_plan.h"
#include "parallelizers/stages/stage_assignment.h"

namespace oslo {
namespace {

/// Both columns of a line of a ledger.
struct Counted {
  Traffic traffic;
  int64_t moved = 0;
};

/// Ledger lines by (group, collective, rule).
using Book = std::map<std::tuple<std::string, std::string, std::string>, Counted>;

Book book_of(const MPU& mpu) {
  Book book;
  for (const auto& group : mpu.groups()) {
    for (const LedgerEntry& entry : group->ledger().entries()) {
      Counted& counted = book[{group->name(), entry.operation, entry.rule}];
      counted.traffic += entry.traffic;
      counted.moved += entry.moved;
    }
  }
  return book;
}

std::vector<PlanTraffic> lines_of(const Book& after, const Book& before) {
  std::vector<PlanTraffic> lines;
  for (const auto& [key, counted] : after) {
    const auto found = before.find(key);
    const Counted earlier = found == before.end() ? Counted() : found->second;
    const Traffic traffic = counted.traffic - earlier.traffic;
    if (traffic.calls == 0) continue;
    const auto& [group, operation, rule] = key;
    lines.push_back({group, {operation, rule, traffic, counted.moved - earlier.moved}});
  }
  return lines;
}

std::vector<GatherEntry> gathers_since(const std::vector<GatherEntry>& after,
                                       const std::vector<GatherEntry>& before) {
  std::vector<GatherEntry> entries;
  for (size_t i = 0; i < after.size(); ++i) {
    GatherEntry entry = after[i];
    if (i < before.size()) {  // reports only grow, in order
      entry.calls -= before[i].calls;
      entry.bytes -= before[i].bytes;
    }
    if (entry.calls > 0) entries.push_back(std::move(entry));
  }
  return entries;
}

bool has_wide_gradients(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (gradient_type(parameter) != parameter.scalar_type()) return true;
  }
  return false;
}

std::vector<PlanAxis> axes_of(const RankGrid& grid) {
  std::vector<PlanAxis> axes;
  for (const Axis& axis : grid.axes()) {
    if (axis.size > 1) axes.push_back({axis.name, grid.groups(axis.name)});
  }
  return axes;
}

}  // namespace

struct ParallelModel::State {
  struct Cut {
    std::string name;
    at::Tensor parameter;
  };

  std::shared_ptr<torch::nn::Module> module;
  MPU mpu;
  Config config;
  std::vector<PlanEntry> entries;
  PlanForecast forecast;
  bool had_example = false;
  PlanPipeline pipeline;
  std::shared_ptr<const ForwardSurveys> surveys;
  std::vector<Cut> cut;
  bool counted = false;
  std::vector<GatherEntry> counted_gathers;
  std::vector<PlanTraffic> counted_traffic;
  std::shared_ptr<const Explanation> explanation;
  std::string not_explained;  ///< why there is none
  SaveMemory saves;
  std::shared_ptr<PendingSave> last_save;
  StageAssignment class_stages;

  /// Throws what became of the last asynchronous save.
  void finish_last_save() {
    if (const auto last = std::exchange(last_save, nullptr)) last->wait();
  }
  SaveOptions with_config(const SaveOptions& options) const {
    SaveOptions all = options;
    if (!all.merge_checkpoints() && all.parallel_config().is_null())
      all.parallel_config(config.to_json());
    return all;
  }
};

ParallelModel::ParallelModel(std::shared_ptr<torch::nn::Module> module, MPU mpu, Config config,
                             std::vector<PlanEntry> entries, PlanForecast forecast,
                             bool had_example, PlanPipeline pipeline,
                             std::shared_ptr<const ForwardSurveys> surveys)
    : state_(std::make_shared<State>(State{std::move(module),
                                           std::move(mpu),
                                           std::move(config),
                                           std::move(entries),
                                           std::move(forecast),
                                           had_example,
                                           std::move(pipeline),
                                           std::move(surveys),
                                           {},
                                           false,
                                           {},
                                           {},
                                           {},
                                           {},
                                           {},
                                           {},
                                           {}})) {
  for (const auto& item : state_->module->named_parameters()) {
    if (mark_of(item.value()) != nullptr) state_->cut.push_back({item.key(), item.value()});
  }
}

void ParallelModel::set_class_stages(const StageAssignment& stages) {
  state_->class_stages = stages;
}

const StageAssignment& ParallelModel::class_stages() const {
  return state_->class_stages;
}

int ParallelModel::get_layer_stage_id(int layer_idx) const {
  const std::vector<PlanLayer>& layers = state_->pipeline.layers;
  const auto count = static_cast<int>(layers.size());
  OSLO_CHECK(layer_idx >= -1 && (state_->pipeline.stages <= 1 || layer_idx < count),
             "get_layer_stage_id(", layer_idx, "): the model has ", count, " layer",
             count == 1 ? "" : "s", ", counted from 0; -1 is the last one");
  if (layers.empty()) return layer_idx == -1 ? std::max(state_->pipeline.stages - 1, 0) : 0;
  return layer_idx == -1 ? layers.back().actual_stage : layers[layer_idx].actual_stage;
}

const std::shared_ptr<torch::nn::Module>& ParallelModel::module() const {
  return state_->module;
}
const MPU& ParallelModel::mpu() const {
  return state_->mpu;
}
const Config& ParallelModel::config() const {
  return state_->config;
}
bool ParallelModel::had_example() const {
  return state_->had_example;
}

const std::shared_ptr<const ForwardSurveys>& ParallelModel::surveys() const {
  return state_->surveys;
}

void ParallelModel::wrong_class(const std::string& wanted) const {
  fail("module_as: the model is a ", class_name(*state_->module), ", not a ", wanted);
}

Plan ParallelModel::plan() const {
  Plan plan;
  plan.entries = state_->entries;
  plan.forecast = state_->forecast;
  plan.pipeline = state_->pipeline;
  plan.ranks = state_->mpu.world().size();
  plan.axes = axes_of(state_->mpu.grid());
  const auto context = context_of(state_->mpu.tensor_mesh());
  plan.precision = to_string(context->precision);
  if (plan.precision.empty() && has_wide_gradients(*state_->module)) {
    plan.precision = "gradients of half parameters added up in float32";
  }
  plan.memory = plan.forecast.memory;
  if (const auto* segments = dynamic_cast<const LayerSegments*>(context->observer.get())) {
    for (const SegmentReport& each : segments->report()) {
      plan.recomputed.push_back({each.name, each.not_cut, each.kept});
    }
    if (const SegmentBudget* budget = segments->budget()) {
      plan.memory.budget = budget->bytes();
      const KeptSegments decided = budget->decided();
      if (decided.peak > 0) {
        plan.memory.peak = decided.peak;
        plan.memory.at = decided.at;
      }
    }
  }
  if (const auto* moves = dynamic_cast<const OffloadLayers*>(context->observer.get())) {
    const std::string what_stays =
        ", but for " + byte_text(moves->options().ahead()) + " that backward uses first";
    if (!moves->device().is_cpu()) {
      plan.offload = "moves to the host's memory" + what_stays;
    } else if (state_->mpu.world().plan_only()) {
      plan.offload = "moves to the host's memory where the model is on a GPU" + what_stays;
    } else {
      plan.offload = "stays, since the model is on the CPU, whose memory it would move to";
    }
  }
  if (state_->counted) {
    plan.counted = "in the counted step";
    plan.gathers = state_->counted_gathers;
    plan.traffic = state_->counted_traffic;
  } else {
    plan.counted = "since initialize";
    plan.gathers = context_of(state_->mpu.tensor_mesh())->gathers().entries();
    plan.traffic = lines_of(book_of(state_->mpu), {});
  }
  return plan;
}

void ParallelModel::count(const std::function<void()>& step) {
  const Book before = book_of(state_->mpu);
  const auto& report = context_of(state_->mpu.tensor_mesh())->gathers();
  const auto gathers_before = report.entries();
  step();
  state_->counted = true;
  state_->counted_traffic = lines_of(book_of(state_->mpu), before);
  state_->counted_gathers = gathers_since(report.entries(), gathers_before);
}

void ParallelModel::set_explanation(std::shared_ptr<const Explanation> explanation,
                                    std::string missing) {
  state_->explanation = std::move(explanation);
  state_->not_explained = std::move(missing);
}

Explanation ParallelModel::explain() const {
  OSLO_CHECK(
      state_->explanation, "explain: ", state_->not_explained,
      "; parallel.explain([&] { /* forward and backward */ }), on every rank, records a step "
      "and explains that");
  return *state_->explanation;
}

Explanation ParallelModel::explain(const std::function<void()>& step) {
  StepRecorder recorder(state_->module, state_->mpu.groups(),
                        context_of(state_->mpu.tensor_mesh()));
  recorder.run(step);
  Explanation explanation = recorder.take();
  explanation.of = "a recorded step";
  explanation.rank = state_->mpu.world().rank();
  state_->explanation = std::make_shared<const Explanation>(explanation);
  return explanation;
}

void ParallelModel::check() const {
  const auto now = state_->module->named_parameters();
  for (const auto& [name, parameter] : state_->cut) {
    OSLO_CHECK(mark_of(parameter) != nullptr, "parameter ", name, " was cut over ranks and has ",
               "lost its mark (its contents were exchanged behind the dispatcher); assign with ",
               "copy_ under torch::NoGradGuard instead");
    const at::Tensor* registered = now.find(name);
    OSLO_CHECK(registered != nullptr && registered->is_same(parameter), "parameter ", name,
               " is not the tensor that initialize cut any more; it was replaced in the module");
  }
}

double ParallelModel::clip_grad_norm_(double max_norm, double norm_type) const {
  return oslo::clip_grad_norm_(state_->module->parameters(), max_norm, norm_type);
}

void ParallelModel::save_parallelized(const std::string& directory,
                                      const SaveOptions& options) const {
  check();
  state_->finish_last_save();
  oslo::save_parallelized(*state_->module, state_->mpu, directory, state_->with_config(options));
}

std::shared_ptr<PendingSave> ParallelModel::save_async(const std::string& directory,
                                                       const SaveOptions& options) const {
  check();
  state_->finish_last_save();
  state_->last_save = oslo::save_async(*state_->module, state_->mpu, directory,
                                       state_->with_config(options), state_->saves);
  return state_->last_save;
}

void ParallelModel::from_parallelized(const std::string& directory,
                                      const LoadOptions& options) const {
  check();
  state_->finish_last_save();
  load_parallelized(*state_->module, state_->mpu, directory, options);
}

std::vector<StateTransfer> ParallelModel::make_ordinary(const ReshardOptions& options) {
  check();
  state_->finish_last_save();
  const ModelView view(state_->module);
  agree_on_text(state_->mpu.world(), "ReshardOptions",
                c10::str("optimizers: ", options.optimizers().size()),
                "give the same optimizers on every rank, or none on any");
  std::vector<StateTransfer> states;
  KnownHolders holders;
  for (torch::optim::Optimizer* optimizer : options.optimizers()) {
    const StateTransfer& own = states.emplace_back(*optimizer, view, state_->mpu);
    for (const auto& [parameter, states] : own.holders()) {
      auto& all = holders[parameter];
      all.insert(all.end(), states.begin(), states.end());
    }
  }
  make_whole(view, state_->mpu, holders);
  clear_initialized(view);
  state_->config = Config();
  state_->entries.clear();
  state_->forecast = {};
  state_->explanation = nullptr;
  state_->not_explained = "the model is an ordinary one again";
  state_->pipeline = {};
  state_->cut.clear();
  return states;
}

void ParallelModel::take_over(const ParallelModel& other) {
  *state_ = *other.state_;
}

}  // namespace oslo
