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
#include "parallelizers/placement/carrier/weight_casts.h"
#include "parallelizers/placement/carrier/whole_gradients.h"
#include "parallelizers/placement/elsewhere/shape_call.h"
#include "parallelizers/placement/elsewhere/stage_call.h"
#include "parallelizers/placement/elsewhere/stage_value.h"
#include "parallelizers/placement/engine/global_strides.h"
#include "parallelizers/placement/layout/memory_order.h"
#include "parallelizers/placement/layout/moving/other_mesh.h"

namespace oslo {
namespace {

bool some_followed(const ContextPtr& context, c10::ArrayRef<c10::IValue> arguments) {
  if (!context || !context->follows()) return false;
  bool found = false;
  for_each_tensor(arguments,
                  [&](const at::Tensor& tensor) { found = found || is_followed(tensor); });
  return found;
}

/// The same with a shape inside, as all that lies on other stages has.
at::Tensor with_shape_inside(const at::Tensor& tensor) {
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  if (impl == nullptr || !impl->unfinished().elsewhere()) return tensor;
  if (impl->unfinished().local.is_meta()) return tensor;
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
    : op_(op),
      stack_(stack),
      base_(stack.size() - op.arguments),
      context_(context_of(arguments())),
      residence_(context_ ? context_->residence() : nullptr),
      follows_(some_followed(context_, arguments())),
      reads_copies_(follows_ && reads_copies()) {
  if (residence_ != nullptr) place_ = residence_->begin(op, arguments(), context_);
}

bool Call::reads_copies() const {
  if (!context_->precision.master_weights || !context_->weight_casts) return false;
  bool alone = true;
  for_each_tensor(arguments().slice(op_.in_place ? 1 : 0), [&](const at::Tensor& tensor) {
    const Mark* const mark = placed_impl(tensor) != nullptr ? nullptr : mark_of(tensor);
    alone = alone && (mark == nullptr || mark->layout->followed());
  });
  const bool writes_mark =
      op_.in_place && is_tensor(0) && is_placed(tensor(0)) && placed_impl(tensor(0)) == nullptr;
  return alone && !writes_mark;
}

Value Call::seen(const at::Tensor& tensor) const {
  Value value = value_of(reads_copies_ ? context_->weight_casts->read(tensor) : tensor);
  if (!value.layout && has_tangent(tensor)) refuse_tangents(name());
  if (op_.use != UseKind::none && value.layout) {
    // The argument, which owns them, stays on the stack until the rule is done.
    if (const WeightUses* uses = weight_uses_of(tensor).get()) value.use = uses->of(op_.use);
  }
  if (residence_ == nullptr) {
    const bool of_other_mesh = value.layout && value.layout->context() != context_;
    if (of_other_mesh) value = on_mesh_of(std::move(value), context_);
    return value;
  }
  return residence_->operand(place_, op_, arguments(), tensor, std::move(value));
}

std::vector<c10::IValue> Call::seen_arguments() const {
  return with_tensors(arguments(), [&](const at::Tensor& tensor) { return seen(tensor).local; });
}

Value Call::resident(Value value) const {
  value = on_stages(std::move(value), context_, place_.stages);
  if (!follows_ || !value.defined() || (value.layout && value.layout->followed())) return value;
  auto layout =
      value.layout ? std::make_shared<Layout>(*value.layout) : std::make_shared<Layout>(context_);
  layout->set_followed(true);
  value.layout = std::move(layout);
  return value;
}

at::Tensor Call::placed(Value value) const {
  return wrap(resident(std::move(value)));
}

c10::IValue Call::read(c10::function_ref<c10::IValue()> look,
                       c10::function_ref<std::optional<c10::IValue>()> shapes_tell) const {
  if (!place_.elsewhere) return look();
  if (auto told = shapes_tell()) return *std::move(told);
  return residence_->read(op_, seen_arguments())[0];
}

at::Tensor Call::elements(const Value& value, c10::function_ref<at::Tensor()> imagined) const {
  if (!place_.elsewhere) return gather_all(value).local;
  if (residence_->imagined() == nullptr) residence_->read(op_, seen_arguments());  // throws
  return imagined();
}

void Call::check_has_elements(const char* does) const {
  OSLO_CHECK(!place_.elsewhere, name(), " ", does,
             ", and this rank has their shapes only: another pipeline stage holds them, or "
             "InitializeOptions::example_inputs is being run");
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
  if (place_.elsewhere && !place_.on_zeros && on_shapes) {
    return residence_->call(op_, std::move(arguments));
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

void Call::run(const DimensionMap& map, const LocalFunction& function, bool may_wait) {
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
      result(resolution.finish(std::move(returned[i]).toTensor(), letters, may_wait), held);
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
  const LayoutPtr whole = viewed ? std::make_shared<Layout>(context_) : nullptr;
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
      if (!value.layout) value.layout = std::make_shared<Layout>(context_);
      at::Tensor weight =
          op_.view ? wrapped_view(std::move(value), held, element) : wrap_placed(std::move(value));
      placed_impl(weight)->set_weight_uses(uses);
      return weight;
    }
  }
  if (op_.view && argument(0).isTensor() && is_placed(tensor(0))) {
    return wrapped_view(std::move(value), held, element);
  }
  if (place_.on_zeros && !all_known(arguments())) value.local = shape_of(value.local);
  if (!op_.view && context_ && hides_strides(op_, arguments(), value)) {
    const auto strides =
        strides_on_one_device(*context_, op_, arguments(), results_.size(), element);
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
  // Of an ordinary target the program has the tensor itself.
  if (!keeps_results_placed() || (place_.stages.empty() && op_.in_place)) {
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
  if (!place_.elsewhere || place_.on_zeros) return false;
  residence_->put_on_zeros(op_, [&] { return seen_arguments(); });
  place_.on_zeros = true;
  results_.clear();
  operands_.clear();
  return true;
}

void Call::finish() {
  // A rule that is made of other operators hands in what they returned, which had zeros to run on.
  if (place_.on_zeros && !op_.in_place && !all_known(arguments())) {
    for (c10::IValue& result : results_) result = with_tensors_in(result, with_shape_inside);
  }
  gather_gradients_of(results_);
  torch::jit::drop(stack_, size());
  for (c10::IValue& result : results_) stack_.push_back(std::move(result));
}

}  // namespace oslo
