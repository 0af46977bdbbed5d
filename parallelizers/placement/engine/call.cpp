#include "parallelizers/placement/engine/call.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/WrapDimMinimal.h>

#include <numeric>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/carrier/whole_gradients.h"
#include "parallelizers/placement/engine/global_strides.h"
#include "parallelizers/placement/layout/memory_order.h"
#include "parallelizers/placement/residency/shape_call.h"
#include "parallelizers/placement/residency/stage_call.h"
#include "parallelizers/placement/residency/stage_carrier.h"
#include "parallelizers/placement/residency/stage_value.h"

namespace oslo {
namespace {

/// The same with a shape inside, as all that lies on other stages has.
at::Tensor with_shape_inside(const at::Tensor& tensor) {
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  if (impl == nullptr || !impl->value().elsewhere() || impl->value().local.is_meta()) return tensor;
  const BelowDoor below;
  return wrap_view({shape_of(impl->value().local), impl->value().layout}, impl->strides(),
                   impl->gathered_view());
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
  // What elements decide the number of, the stage that has them tells (stage_draw.h).
  const bool drawn =
      elsewhere_ && !mesh_->provider && draws(op, arguments()) == Draws::as_shapes_say;
  on_zeros_ =
      elsewhere_ && (drawn || mesh_->shapes->on_zeros.count(op.name) > 0 || all_known(arguments()));
  if (op.in_place && mesh_->stages && !mesh_->in_step) refuse_scale_of_stage(op, arguments());
  if (op.in_place && is_tensor(0) && !stages_.empty()) {
    bring_target(stages_, tensor(0), mesh_, name());
  }
  if (elsewhere_ || stages_.empty()) return;
  if (StageCarrier* const carrier = StageCarrier::current()) carrier->enter(stages_);
}

/// Beside shapes an ordinary tensor is a shape too.
Value Call::seen(const at::Tensor& tensor) const {
  Value value = value_of(tensor);
  if (!value.layout && has_tangent(tensor)) refuse_tangents(name());
  if (op_.use != UseKind::none && value.layout) {
    // The argument, which owns them, stays on the stack until the rule is done.
    if (const WeightUses* uses = weight_uses_of(tensor).get()) value.use = uses->of(op_.use);
  }
  if (value.layout && value.layout->resident()) {
    const bool there = !(value.layout->stages() & stages_).empty();
    if (!there) {
      value = carried(tensor, std::move(value));
    } else if (!elsewhere_) {
      value = handed_over(tensor, std::move(value));
    }
  } else if (!stages_.empty() && !value.layout) {
    refuse_learnable(tensor, *mesh_, stages_, name());
  }
  if (elsewhere_ && !(on_zeros_ && all_known(arguments()))) {
    value.local = on_zeros_ ? zeros_of(value.local).to(mesh_->device) : shape_of(value.local);
  }
  return value;
}

Value Call::carried(const at::Tensor& tensor, Value value) const {
  return carried_to(stages_, tensor, std::move(value), name());
}

Value Call::handed_over(const at::Tensor& tensor, Value value) const {
  return handed_over_to(stages_, tensor, std::move(value));
}

Value Call::resident(Value value) const {
  return on_stages(std::move(value), mesh_, stages_);
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
  if (!op_.view && mesh_ && hides_strides(op_, arguments(), value)) {
    const auto strides = strides_on_one_device(*mesh_, op_, arguments(), results_.size(), element);
    if (!strides.empty() && static_cast<int64_t>(strides.size()) == value.dim()) {
      const BelowDoor below;
      value.local = in_order_of(std::move(value.local), value.sizes(), strides);
      return wrap_view(std::move(value), strides);
    }
  }
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
  // A rule that is made of other operators hands in what they returned, which had zeros to run on.
  if (on_zeros_ && !op_.in_place && !all_known(arguments())) {
    for (c10::IValue& result : results_) result = with_tensors_in(result, with_shape_inside);
  }
  gather_gradients_of(results_);
  torch::jit::drop(stack_, size());
  for (c10::IValue& result : results_) stack_.push_back(std::move(result));
}

}  // namespace oslo
