#include "parallelizers/plan/dry/dry_run.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <numeric>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/grid/random_states.h"
#include "mpu/world/world.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/libtorch/tensor_tag.h"
#include "parallelizers/modules/unsaved_buffers.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/elsewhere/shape_call.h"
#include "parallelizers/placement/elsewhere/shape_kernels.h"
#include "parallelizers/placement/layout/layout.h"
#include "parallelizers/placement/layout/sharded_weight.h"
#include "parallelizers/placement/operators/planned_results.h"
#include "parallelizers/plan/dry/example_run.h"
#include "parallelizers/plan/dry/stage_work.h"
#include "parallelizers/plan/layers/planned_uses.h"

namespace oslo {
namespace {

/// Wishes come in layers: a split asks for blocks, then a view of a block for a unit.
constexpr int kPasses = 4;

/// All values have a stage, and it is not this rank's.
const StageSet kElsewhere = StageSet::of(0);

at::Device device_of(const ModelView& model) {
  const auto& parameters = model.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().registered.device();
}

std::shared_ptr<ModelContext> context_over(const PlanAxes& axes,
                                           std::shared_ptr<Residence> residence) {
  const RankGrid grid(axes.axes);
  const World world = World::fake(0, grid.size());
  std::vector<std::shared_ptr<Group>> groups;
  for (const Axis& axis : axes.axes) {
    groups.push_back(world.make_group(axis.name, grid.groups(axis.name).front()));
    groups.back()->foresee_backward();
  }
  auto context = context_of(std::make_shared<const Mesh>(std::move(groups)));
  context->set_residence(std::move(residence));
  return context;
}

/// What the forward threw, led by the operator that it came from where one is known.
[[noreturn]] void throw_named(const std::string& text, const std::string& operation) {
  fail(operation.empty() || text.starts_with(operation) ? "" : operation + ": ", text);
}

}  // namespace

DryRun::DryRun(const ModelView& model, const PlanAxes& axes, std::function<void()> example,
               FirstWrites& writes, const Rates& rates)
    : model_(model),
      example_(std::move(example)),
      writes_(writes),
      rates_(rates),
      calls_(std::make_shared<CallDigest>()),
      residence_(std::make_shared<DryResidence>(device_of(model))),
      context_(context_over(axes, residence_)),
      members_(model) {
  context_->observer = calls_;
  calls_->tell(residence_->content());
  for (const ParameterView& parameter : model.parameters()) {
    hold(parameter.registered);
    hold(parameter.in_use());
  }
  for (const BufferView& buffer : model.buffers()) hold(buffer.tensor);
  // They stay on every stage with their content: a counter goes on meanwhile.
  for (const at::Tensor& buffer : unsaved_buffers(model)) {
    const at::Tensor memory = buffer.detach();
    unsaved_.emplace_back(memory, memory.clone());
  }
}

void DryRun::hold(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return;
  Held& held = held_[tensor.unsafeGetTensorImpl()];
  if (held.tensor.defined()) return;
  held.tensor = tensor;
  held.in_graph = tensor.grad_fn() != nullptr;
  held.accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor);
  const at::TensorOptions shape = at::TensorOptions(tensor.dtype()).device(at::kMeta);
  if (const Mark* mark = mark_of(tensor)) {
    held.original = marked_like(unmarked_alias(tensor), tensor);
    held.shape = at::empty(mark->layout->global_sizes(tensor.sizes()), shape);
    Layout layout(context_, kElsewhere);
    // Of a weight that data replicas have parts of, what a forward computes with.
    const LayoutPtr& lies = mark->sharded ? mark->sharded->used() : mark->layout;
    for (int axis = 0; lies && axis < layout.axes(); ++axis) layout[axis] = (*lies)[axis];
    held.decided = std::make_shared<Layout>(std::move(layout));
    return;
  }
  held.original = unmarked_alias(tensor);
  copy_tag(*tensor.unsafeGetTensorImpl(), *held.original.unsafeGetTensorImpl());
  held.shape = at::empty_strided(tensor.sizes(), tensor.strides(), shape);
}

DryRun::~DryRun() {
  leave_graph();
  residence_->content().restore_written();
  for (const auto& [memory, content] : unsaved_) put_back(memory, content);
  residence_->end(
      "a tensor that the model kept from the run of InitializeOptions::example_inputs was used: "
      "initialize runs the example on shapes, so that it has no content; reset what the forward "
      "keeps (a cache, attention maps) after initialize, or run the model first");
  for (auto& [impl, held] : held_) {
    if (!held.placed) continue;
    auto* own = held.tensor.unsafeGetTensorImpl();
    own->shallow_copy_from(held.original.getIntrusivePtr());
    copy_tag(*held.original.unsafeGetTensorImpl(), *own);
    // What the model kept of the run may hold ours.
    if (held.accumulator || torch::autograd::impl::try_get_grad_accumulator(held.tensor)) {
      torch::autograd::impl::set_grad_accumulator(held.tensor, WeakNodePtr(held.accumulator));
    }
  }
  // Backwards: a layer that is registered twice had its padding on the first visit only.
  for (auto padding = paddings_.rbegin(); padding != paddings_.rend(); ++padding) {
    padding->layer->as<torch::nn::EmbeddingImpl>()->options.padding_idx(padding->row);
  }
}

/// Buffers that the forward wrote with a gradient recorded.
void DryRun::leave_graph() {
  const BelowDoor below;
  for (auto& [impl, held] : held_) {
    if (held.placed && !held.in_graph && held.tensor.grad_fn()) held.tensor.detach_();
  }
}

Layout DryRun::planned_layout(const Held& held, const std::string& name, const LayerPlan* layer) {
  Layout layout = make_layout(context_, held.placements, held.shape.sizes());
  for (int i = 0; i < layout.axes(); ++i) {
    if (layout[i].whole()) continue;
    const std::string& axis = layout.group(i)->name();
    const LayerStyle& style = layer->style_on(axis);
    auto origin =
        std::make_shared<CutOrigin>(CutOrigin{name, style.blocks, style.unit, /*planning=*/true});
    const CutPtr cut = layout[i].cut;
    layout[i].cut = std::make_shared<Cut>(cut->runs(), origin)->among(cut->family());
    origins_[{axis, name}] = std::move(origin);
  }
  return layout;
}

void DryRun::place(const at::Tensor& tensor, const std::vector<Placement>& placements,
                   const std::string& name, const LayerPlan* layer) {
  const auto found = held_.find(tensor.unsafeGetTensorImpl());
  if (found == held_.end()) return;
  Held& held = found->second;
  const bool whole = std::none_of(placements.begin(), placements.end(),
                                  [](const Placement& placement) { return placement.is_shard(); });
  const bool stays = held.decided || (held.placements == placements && whole);
  if (held.placed && stays) return;
  auto* own = held.tensor.unsafeGetTensorImpl();
  own->shallow_copy_from(held.shape.getIntrusivePtr());
  clear_tag(*own);
  held.placements = placements;
  Layout layout = held.decided ? *held.decided : planned_layout(held, name, layer);
  const StageSet stages = stages_.of(tensor);
  layout.set_stages(stages.empty() ? kElsewhere : stages);
  held.placed = true;
  mark_parameter(held.tensor, std::make_shared<Layout>(std::move(layout)), name);
}

void DryRun::place_all(const std::vector<LayerPlan>& layers) {
  origins_.clear();
  std::map<const c10::TensorImpl*, bool> planned;
  const auto place_first = [&](const at::Tensor& tensor, const std::vector<Placement>& placements,
                               const std::string& name, const LayerPlan& layer) {
    const bool first = planned.emplace(tensor.unsafeGetTensorImpl(), true).second;
    if (first) place(tensor, placements, name, &layer);
  };
  const PlannedUses uses = planned_uses(layers, context_->mesh());
  for (const LayerPlan& layer : layers) {
    for (const LayerPlan::Part& part : layer.parts()) {
      place_first(part.tensor, layer.placements(part, context_->mesh()), part.path, layer);
      const auto use = uses.find(part.tensor.unsafeGetTensorImpl());
      if (use != uses.end() && mark_of(part.tensor)) set_weight_uses(part.tensor, use->second);
    }
    if (!layer.embedding() || !layer.module) continue;
    auto* embedding = layer.module->as<torch::nn::EmbeddingImpl>();
    if (!embedding->options.padding_idx()) continue;
    paddings_.push_back({layer.module, embedding->options.padding_idx()});
    embedding->options.padding_idx(std::nullopt);
  }
  const std::vector<Placement> whole(context_->mesh().axes());
  for (auto& [impl, held] : held_) {
    if (planned.count(impl) == 0) place(held.tensor, whole, "a whole tensor", nullptr);
  }
}

DryCost DryRun::run_once() {
  const c10::AutoGradMode grad(true);
  size_t known = 0;
  Work work;
  do {  // again when rules had to start over: they count twice what they moved before
    known = residence_->shapes().on_zeros.size();
    ++runs_;
    context_->gathers().clear();
    for (int axis = 0; axis < context_->mesh().axes(); ++axis)
      context_->mesh().axis(axis)->ledger().clear();
    calls_->clear();
    held_operands_.clear();
    residence_->content().begin_run();
    leave_graph();
    {
      WorkMeter meter(rates_);
      const auto by_stage = std::make_shared<StageWork>(
          calls_, [&] { return meter.work().seconds + collectives().seconds; });
      const auto observed = c10::make_scope_exit([&] { context_->observer = calls_; });
      if (!stages_.empty()) context_->observer = by_stage;
      if (tape_) {
        tape_->begin(calls_);
        context_->observer = tape_;
      }
      const auto taped = c10::make_scope_exit([&] {
        if (tape_) tape_->end();
      });
      residence_->shapes().on_known = [&](const auto& op, const auto& arguments,
                                          const auto& results) {
        meter.note(op, arguments, results);
        if (tape_) tape_->note(op, arguments, results);
        if (holds_operands_) held_operands_.push_back(arguments);
      };
      const auto led = c10::make_scope_exit([&] { residence_->gradients().restore(); });
      run_watched(model_, example_, writes_);
      residence_->shapes().on_known = nullptr;
      held_operands_.clear();
      work = meter.work();
      stage_work_ = by_stage->finish();
    }
    members_.restore();
  } while (residence_->shapes().on_zeros.size() > known || writes_.open());
  writes_.check();
  return cost_of(work);
}

/// A forward that looks at what it computed may throw on zeros: TORCH_CHECK(isfinite(h).all()). It
/// runs again where that is one, unless it has run on what it was shown before.
DryCost DryRun::run_past_checks() {
  ImaginedContent& content = residence_->content();
  for (bool more = true; more;) {
    try {
      const DryCost cost = run_once();
      succeeded_ = true;
      return cost;
    } catch (const PlanMismatch&) {
      throw;
    } catch (const std::exception&) {
      if (succeeded_) throw;
      const bool tried = content.imagines_others();
      more = content.imagine_other();
      if (!more && !tried) throw;
      writes_.check();
      members_.restore();
    }
  }
  content.forget_others();
  content.let_loops_run(true);
  const auto let = c10::make_scope_exit([&] { content.let_loops_run(false); });
  return run_once();  // throws what it threw at first, or ends after all
}

/// A forward that asks for derivatives runs LibTorch's backward on shapes, for which some operators
/// have no kernel: it throws then, and runs again with what stands in for them.
DryCost DryRun::run_or_again() {
  if (!stands_in_) {
    try {
      return run_past_checks();
    } catch (const PlanMismatch&) {
      throw;
    } catch (const std::exception&) {
      writes_.check();
      members_.restore();
      stands_in_ = true;
      residence_->shapes().on_zeros.clear();  // what stood in so far has no history
      residence_->shapes().results.clear();
    }
  }
  const ShapeKernels kernels(residence_->imagined());
  return run_past_checks();
}

std::vector<DryRun::TensorBytes> DryRun::model_bytes() const {
  std::vector<TensorBytes> model;
  for (const auto& [impl, held] : held_) {
    const auto bytes = static_cast<int64_t>(held.tensor.numel() * held.tensor.element_size());
    model.push_back({held.tensor, bytes, held.tensor.requires_grad()});
  }
  return model;
}

DryRun::Collectives DryRun::collectives() const {
  Collectives moved;
  for (int axis = 0; axis < context_->mesh().axes(); ++axis) {
    for (const LedgerEntry& entry : context_->mesh().axis(axis)->ledger().entries()) {
      const auto calls = static_cast<double>(entry.traffic.calls);
      const auto bytes = static_cast<double>(entry.traffic.bytes);
      moved.bytes += entry.traffic.bytes;
      moved.seconds += calls * rates_.collective.seconds(bytes / calls);
    }
  }
  return moved;
}

DryCost DryRun::cost_of(const Work& work) const {
  DryCost cost;
  cost.gathers = context_->gathers().calls();
  cost.calls = calls_->value();
  const Collectives moved = collectives();
  cost.bytes = moved.bytes;
  cost.waiting = moved.seconds;
  cost.seconds = work.seconds + cost.waiting;
  cost.kept_bytes = work.kept_bytes;
  for (const TensorBytes& each : model_bytes()) {
    cost.parameter_bytes += each.bytes * (each.trains ? 2 : 1);
  }
  return cost;
}

DryCost DryRun::run(std::vector<LayerPlan>& layers) {
  const RandomStates random(default_generators(model_));
  DryCost cost;
  std::vector<LayerPlan> before;
  for (int pass = 1; pass <= kPasses; ++pass) {
    try {
      place_all(layers);  // throws where a wish does not divide what another axis leaves
      cost = run_or_again();
    } catch (const PlanMismatch&) {
      throw;
    } catch (const std::exception& error) {
      if (before.empty()) throw_named(message_of(error), calls_->failed());
      // What was gathered before is now a part, and the forward does with it what parts cannot.
      layers = before;
      return cost;
    }
    before = layers;
    if (pass == kPasses || !take_wishes(layers)) break;
  }
  return cost;
}

bool DryRun::take_wishes(std::vector<LayerPlan>& layers) const {
  bool changed = false;
  const auto take = [&](const LayerPlan& layer, const std::string& axis, LayerStyle& style) {
    LayerStyle wanted = style;
    for (const LayerPlan::Part& part : layer.parts()) {
      const auto found = origins_.find({axis, part.path});
      if (found == origins_.end()) continue;
      wanted.blocks = std::max(wanted.blocks, found->second->wanted_blocks);
      wanted.unit = std::lcm(wanted.unit, found->second->wanted_unit);
    }
    if (layer.recurrent() && wanted.blocks % layer.view.gates != 0) wanted.blocks = style.blocks;
    if (wanted == style || !wanted.divides()) return;
    if (layer.cut_size(style) % (wanted.blocks * wanted.unit) != 0) return;
    style = wanted;
    changed = true;
  };
  for (LayerPlan& layer : layers) {
    take(layer, layer.axis, layer.style);
    for (auto& [axis, style] : layer.other_styles) take(layer, axis, style);
  }
  if (changed) follow_ties(layers);
  return changed;
}

}  // namespace oslo
