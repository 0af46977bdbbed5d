#include "parallelizers/placement/engine/call.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/WrapDimMinimal.h>

#include <numeric>

#include "mpu/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/adopt.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/carrier/whole_gradients.h"
#include "parallelizers/placement/engine/shape_call.h"
#include "parallelizers/placement/engine/stage_call.h"
#include "parallelizers/placement/engine/stage_carrier.h"

namespace oslo {
namespace {

/// Even elsewhere a few values are known (how long packed sequences are): what is computed from
/// them alone is known too.
bool all_known(c10::ArrayRef<c10::IValue> arguments) {
  bool known = true;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    const PlacedTensorImpl* impl = placed_impl(tensor);
    known &= impl != nullptr ? impl->value().local.is_cpu() : tensor.is_cpu() && is_here(tensor);
  });
  return known;
}

}  // namespace

const std::shared_ptr<const WeightUses>& weight_uses_of(const at::Tensor& tensor) {
  static const std::shared_ptr<const WeightUses> none;
  if (const PlacedTensorImpl* impl = placed_impl(tensor)) return impl->weight_uses();
  const Mark* mark = mark_of(tensor);
  return mark != nullptr ? mark->uses : none;
}

Call::Call(const OperatorEntry& op, torch::jit::Stack& stack)
    : op_(op), stack_(stack), base_(stack.size() - op.arguments), mesh_(mesh_of(arguments())) {
  if (!mesh_ || !mesh_->shapes) return;  // no value has a stage
  stages_ = stages_of(arguments());
  elsewhere_ = !mesh_->holds(stages_);
  // Random numbers that another stage draws are drawn here as well, and dropped: the ranks of one
  // model go on drawing the same, for dropout as on one device, and for the program's own batches.
  const bool drawn = elsewhere_ && !mesh_->provider && draws(op, arguments());
  on_zeros_ =
      elsewhere_ && (drawn || mesh_->shapes->on_zeros.count(op.name) > 0 || all_known(arguments()));
  if (op.in_place && mesh_->stages && !mesh_->in_step) refuse_scale_of_stage(op, arguments());
  const bool adopts = op.in_place && argument(0).isTensor() && !mesh_->provider;
  if (adopts && !stages_.empty()) adopt_target(tensor(0), mesh_, stages_, name());
  if (elsewhere_ || stages_.empty()) return;
  if (StageCarrier* const carrier = StageCarrier::current()) carrier->enter(stages_);
}

/// Beside shapes an ordinary tensor is a shape too.
Value Call::seen(const at::Tensor& tensor) const {
  Value value = value_of(tensor);
  if (op_.use != UseKind::none && value.layout) {
    // The argument, which owns them, stays on the stack until the rule is done.
    if (const WeightUses* uses = weight_uses_of(tensor).get()) value.use = uses->of(op_.use);
  }
  if (value.layout && value.layout->resident()) {
    const bool there = !(value.layout->stages() & stages_).empty();
    if (!there) {
      value = carried(tensor, std::move(value));
    } else if (!elsewhere_ && mesh_->stage_ranks.several()) {
      value = handed_over(tensor, std::move(value));
    }
  }
  if (elsewhere_ && !(on_zeros_ && all_known(arguments()))) {
    value.local = on_zeros_ ? zeros_of(value.local).to(mesh_->device) : shape_of(value.local);
  }
  return value;
}

Value Call::carried(const at::Tensor& tensor, Value value) const {
  StageCarrier* carrier = StageCarrier::current();
  const auto place = [&] { return c10::str(name(), " on pipeline ", stages_.to_string(), " "); };
  const std::string from = value.layout->stages().to_string();
  OSLO_CHECK(carrier != nullptr || !mesh_->in_step, place(), "needs a value of ", from,
             " in a backward pass (of a torch::autograd::Function, or in a hook), to which nothing "
             "is carried; compute with it in the forward");
  if (carrier == nullptr && !c10::GradMode::is_enabled()) carrier = mesh_->evaluation.get();
  if (const auto [parameter, mark] = parameter_of(tensor); mark != nullptr) {
    if (carrier != nullptr && carrier->lends(parameter, stages_.first())) return resident(value);
    OSLO_CHECK(mark_of(tensor) == nullptr, place(), "uses ", mark->name, ", which lives on ", from,
               "; plan it for both, or for the later one: \"stages\": {\"", mark->name, "\": [",
               value.layout->stages().first(), ", ", stages_.first(),
               "]}, or give initialize example_inputs, which shows it");
    fail(place(), "uses a view of shape ", tensor.sizes(), " of ", mark->name,
         ", a parameter that lives on ", from,
         "; plan it for both, or for the later one: \"stages\": {\"", mark->name, "\": [",
         value.layout->stages().first(), ", ", stages_.first(),
         "]}, or give initialize example_inputs, which shows it");
  }
  OSLO_CHECK(carrier != nullptr, place(), "needs a value of ", from,
             ", and nobody carries values between stages here; train with oslo::PipelineSchedule, "
             "and evaluate with it or under torch::NoGradGuard");
  value.local = carrier->carry(tensor, value, stages_.first());
  auto layout = std::make_shared<Layout>(*value.layout);
  layout->set_stages(stages_);
  value.layout = std::move(layout);
  return value;
}

/// Each of this rank's stages has a backward pass of its own, which a value that two of them share
/// must not stand in twice. What they do with a parameter meets in its gradient.
Value Call::handed_over(const at::Tensor& tensor, Value value) const {
  const StageRanks& ranks = mesh_->stage_ranks;
  StageCarrier* const carrier = StageCarrier::current();
  const bool shared = ranks.home_of(value.layout->stages()) != ranks.home_of(stages_);
  if (shared && carrier != nullptr && parameter_of(tensor).second == nullptr) {
    value.local = carrier->hand_over(tensor, value, stages_);
  }
  return value;
}

Value Call::resident(Value value) const {
  if (stages_.empty() || (value.layout && value.layout->stages() == stages_)) return value;
  auto layout =
      value.layout ? std::make_shared<Layout>(*value.layout) : std::make_shared<Layout>(mesh_);
  layout->set_stages(stages_);
  value.layout = std::move(layout);
  return value;
}

c10::IValue Call::read_elsewhere() const {
  return oslo::read_elsewhere(
      mesh_->provider.get(), op_,
      with_tensors(arguments(), [&](const at::Tensor& tensor) { return seen(tensor).local; }))[0];
}

std::vector<int64_t> Call::integers(size_t i) const {
  if (argument(i).isInt()) return {argument(i).toInt()};
  return argument(i).toIntVector();
}

int64_t Call::dimension(size_t i, int64_t dims) const {
  return c10::maybe_wrap_dim(integer(i), dims);
}

std::vector<int64_t> Call::dimensions(size_t i, int64_t dims) const {
  std::vector<int64_t> result = none(i) ? std::vector<int64_t>() : integers(i);
  if (result.empty()) {
    result.resize(dims);
    std::iota(result.begin(), result.end(), 0);
  }
  for (int64_t& dim : result) dim = c10::maybe_wrap_dim(dim, dims);
  return result;
}

Value Call::value(size_t i) const {
  if (none(i) || !argument(i).toTensor().defined()) return {};
  return read(place_of(i), argument(i).toTensor());
}

std::vector<Value> Call::values(size_t i) const {
  std::vector<Value> values;
  size_t place = place_of(i);
  for (const at::Tensor& tensor : argument(i).toTensorVector()) {
    values.push_back(tensor.defined() ? read(place++, tensor) : Value());
  }
  return values;
}

const Value& Call::read(size_t place, const at::Tensor& tensor) const {
  if (place >= operands_.size()) operands_.resize(place + 1);
  Operand& operand = operands_[place];
  const bool records = c10::GradMode::is_enabled();
  // What was read without gradients has no history to give to what records them.
  if (!operand.value.defined() || (records && !operand.recorded)) {
    operand = {seen(tensor), records};
  }
  return operand.value;
}

size_t Call::place_of(size_t i) const {
  size_t place = 0;
  for_each_tensor(arguments().slice(0, i), [&](const at::Tensor&) { ++place; });
  return place;
}

c10::SmallVector<Value, 4> Call::operands() const {
  c10::SmallVector<Value, 4> operands;
  for_each_tensor(arguments(), [&](const at::Tensor& tensor) {
    operands.push_back(read(operands.size(), tensor));
  });
  return operands;
}

std::vector<c10::IValue> Call::call_below(c10::ArrayRef<at::Tensor> local) const {
  size_t next = 0;
  return call_with(with_tensors(arguments(), [&](const at::Tensor&) { return local[next++]; }));
}

std::vector<c10::IValue> Call::call_with(std::vector<c10::IValue> arguments) const {
  const bool on_shapes =
      !op_.in_place || (arguments[0].isTensor() && arguments[0].toTensor().is_meta());
  if (elsewhere_ && !on_zeros_ && on_shapes) {
    return call_on_shapes(op_, std::move(arguments), *mesh_->shapes, mesh_->provider.get());
  }
  const BelowDoor below;
  op_.handle.callBoxed(&arguments);
  return arguments;
}

void Call::check_shapes() const {
  c10::SmallVector<at::Tensor, 4> shapes;
  for (const Value& operand : operands()) {
    shapes.push_back(at::empty(operand.sizes(), operand.local.options().device(at::kMeta)));
  }
  call_below(shapes);
}

void Call::run(const DimensionMap& map) {
  run(map, [this](c10::ArrayRef<at::Tensor> local) { return call_below(local); });
}

void Call::run(const DimensionMap& map, const LocalFunction& function) {
  auto operands = this->operands();
  OSLO_CHECK(operands.size() == map.operands.size(), name(), ": the rule describes ",
             map.operands.size(), " operands, the call has ", operands.size());
  c10::SmallVector<LayoutPtr, 4> before;
  for (const Value& operand : operands) before.push_back(operand.layout);
  const Resolution resolution = resolve(map, operands);
  // A view of something that had to be gathered no longer aliases it.
  const bool moved = op_.view && before[0] && before[0] != operands[0].layout;
  const Value first = moved ? operands[0] : Value();
  const Value* held = moved ? &first : nullptr;
  c10::SmallVector<at::Tensor, 4> local;
  for (Value& operand : operands) local.push_back(std::move(operand.local));
  auto returned = function(local);
  for (size_t i = 0; i < returned.size(); ++i) {
    const std::string& letters = map.results[std::min(i, map.results.size() - 1)];
    if (returned[i].isTensor()) {
      result(resolution.finish(std::move(returned[i]).toTensor(), letters), held);
      continue;
    }
    std::vector<Value> list;
    for (at::Tensor& tensor : returned[i].toTensorVector()) {
      list.push_back(resolution.finish(std::move(tensor), letters));
    }
    result(std::move(list), held);
  }
}

void Call::gather(const std::string& reason) {
  auto operands = this->operands();
  c10::SmallVector<at::Tensor, 4> local;
  const bool viewed = op_.view && operands[0].cut();
  const LayoutPtr whole = viewed ? std::make_shared<Layout>(mesh_) : nullptr;
  for (const Value& operand : operands) local.push_back(gather_reported(operand, name(), reason));
  const Value held{local[0], whole};
  for (c10::IValue& returned : call_below(local)) {
    if (viewed && returned.isTensor()) {
      result({returned.toTensor(), whole}, &held);
    } else if (viewed && returned.isTensorList()) {
      std::vector<Value> list;
      for (at::Tensor& tensor : returned.toTensorVector()) list.push_back({tensor, whole});
      result(std::move(list), &held);
    } else {
      result_plain(std::move(returned));
    }
  }
}

at::Tensor Call::wrapped(Value value, const Value* held, size_t element) {
  value = resident(std::move(value));
  if (op_.same_weight) {
    if (const auto& uses = weight_uses_of(tensor(0))) {
      if (!value.layout) value.layout = std::make_shared<Layout>(mesh_);
      at::Tensor weight =
          op_.view ? wrapped_view(std::move(value), held, element) : wrap_placed(std::move(value));
      placed_impl(weight)->set_weight_uses(uses);
      return weight;
    }
  }
  if (op_.view && argument(0).isTensor() && is_placed(tensor(0))) {
    return wrapped_view(std::move(value), held, element);
  }
  if (on_zeros_ && !all_known(arguments())) value.local = shape_of(value.local);
  if (op_.pointwise && value.stays_placed()) {
    for (size_t i = 0; i < size(); ++i) {
      const PlacedTensorImpl* impl = is_tensor(i) ? placed_impl(tensor(i)) : nullptr;
      if (impl != nullptr && impl->sizes() == c10::IntArrayRef(value.sizes())) {
        return wrap_like(std::move(value), *impl);
      }
    }
  }
  return wrap(std::move(value));
}

/// A view operator's result on the placed or marked argument 0.
at::Tensor Call::wrapped_view(Value value, const Value* held, size_t element) {
  const at::Tensor base = tensor(0);
  const PlacedTensorImpl* impl = placed_impl(base);
  const bool aliases = impl == nullptr || value.local.is_alias_of(impl->value().local);
  if (held != nullptr && !gathered_) gathered_ = std::make_shared<GatheredBase>(base, *held);
  std::shared_ptr<GatheredBase> of = held != nullptr ? gathered_ : nullptr;
  // A view of a view that had to gather shares its fate.
  if (!of && aliases && impl != nullptr && impl->gathered_view()) of = impl->gathered_view()->of;
  const auto strides = strides_of_view(value, element);
  if (on_zeros_ && !all_known(arguments())) value.local = shape_of(value.local);
  std::shared_ptr<const GatheredView> gathered;
  if (of) {
    if (!value.layout) value.layout = std::make_shared<Layout>(mesh_);
    gathered = std::make_shared<GatheredView>(of, op_.handle, arguments().vec(), results_.size(),
                                              element, c10::GradMode::is_enabled());
  }
  const bool weight = op_.same_weight && weight_uses_of(base) != nullptr;
  at::Tensor view = wrap_view(std::move(value), strides, std::move(gathered), weight);
  PlacedTensorImpl* seen_as = placed_impl(view);
  if (seen_as == nullptr) return view;
  // What a user's autograd::Function saved of it is then seen to have changed.
  if (of || aliases) share_version(view, base);
  GraphPlace& place = GraphPlace::of(*seen_as);
  if (!of && aliases && impl != nullptr) place.set_base(base);
  place.set_leaf(impl == nullptr ? base : GraphPlace::of(*impl).leaf());
  return view;
}

/// What one device's view would have, from the operator itself on shapes; empty where every rank
/// reads it off its own part.
std::vector<int64_t> Call::strides_of_view(const Value& value, size_t element) const {
  const at::Tensor base = tensor(0);
  const LayoutPtr from = layout(base);
  if (!value.cut() || (value.layout->tells_strides() && from->tells_strides())) return {};
  if (op_.pointwise) {  // detach, to
    const bool keeps = placed_impl(base) != nullptr && base.is_non_overlapping_and_dense();
    return keeps ? base.strides().vec() : std::vector<int64_t>();
  }
  const c10::AutoGradMode no_grad(false);
  const BelowDoor below;
  torch::jit::Stack stack(arguments().begin(), arguments().end());
  const at::TensorOptions shape = value.local.options().device(at::kMeta).requires_grad(false);
  const at::TensorOptions like = shape.dtype(base.dtype());
  stack[0] = placed_impl(base) != nullptr ? at::empty_strided(base.sizes(), base.strides(), like)
                                          : at::empty(from->global_sizes(base.sizes()), like);
  op_.handle.callBoxed(&stack);
  const c10::IValue& result = stack[results_.size()];
  const at::Tensor view =
      result.isTensorList() ? result.toTensorVector()[element] : result.toTensor();
  OSLO_CHECK(view.sizes() == c10::IntArrayRef(value.sizes()), name(), ": a view of shape ",
             c10::IntArrayRef(value.sizes()), " is one of ", view.sizes(), " on one device");
  return view.strides().vec();
}

void Call::result_plain(c10::IValue value) {
  if (stages_.empty()) {
    results_.push_back(std::move(value));
    return;
  }
  if (value.isTensor() && value.toTensor().defined() && !is_placed(value.toTensor())) {
    return result({value.toTensor(), nullptr});
  }
  if (value.isTensorList()) {
    std::vector<Value> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back({tensor, nullptr});
    return result(std::move(list));
  }
  results_.push_back(std::move(value));
}

void Call::result(Value value, const Value* held) {
  results_.emplace_back(wrapped(std::move(value), held));
}

void Call::result(std::vector<Value> values, const Value* held) {
  std::vector<at::Tensor> tensors;
  for (Value& value : values) tensors.push_back(wrapped(std::move(value), held, tensors.size()));
  results_.emplace_back(std::move(tensors));
}

bool Call::restart_on_zeros() {
  if (!elsewhere_ || on_zeros_) return false;
  if (!mesh_->provider && reads_elements(op_)) read_elsewhere();  // throws
  mesh_->shapes->on_zeros.insert(op_.name);
  on_zeros_ = true;
  results_.clear();
  operands_.clear();
  return true;
}

void Call::finish() {
  gather_gradients_of(results_);
  torch::jit::drop(stack_, size());
  for (c10::IValue& result : results_) stack_.push_back(std::move(result));
}

}  // namespace oslo
