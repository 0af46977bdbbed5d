#include "parallelizers/placement/door/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <optional>
#include <utility>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/carrier/weight_casts.h"

namespace oslo {
namespace {

/// Where a thread is in a call under autocast. LibTorch keeps such a state of its own, which says
/// "off" as much within a kernel of autocast as where nobody has switched it on.
thread_local bool inside_kernel = false;
thread_local bool may_keep_casts = false;
thread_local bool forward_again = false;
/// That it is on by the model's precision, and whether that keeps casts.
thread_local bool on_by_model = false;
thread_local bool model_keeps_casts = false;
/// That it does although LibTorch's cache is off.
thread_local bool keeps_without_cache = false;

bool keeps_casts() {
  return keeps_without_cache || at::autocast::is_autocast_cache_enabled();
}

/// One operator under autocast. What its kernel runs is past autocast, as in LibTorch.
class KernelScope {
 public:
  /// `type`: the model's; unset: the program's guard says which.
  KernelScope(at::DeviceType device, std::optional<at::ScalarType> type)
      : device_(device),
        by_model_(type.has_value()),
        outer_inside_(std::exchange(inside_kernel, true)),
        outer_may_keep_(may_keep_casts) {
    if (!by_model_) return;
    type_ = at::autocast::get_autocast_dtype(device_);
    caches_ = at::autocast::is_autocast_cache_enabled();
    may_keep_casts = on_by_model ? model_keeps_casts : keeps_casts();
    at::autocast::set_autocast_dtype(device_, *type);
    // Its cache is one for the process, and nobody would clear it.
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~KernelScope() {
    inside_kernel = outer_inside_;
    may_keep_casts = outer_may_keep_;
    if (!by_model_) return;
    at::autocast::set_autocast_dtype(device_, type_);
    at::autocast::set_autocast_cache_enabled(caches_);
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  const at::DeviceType device_;
  const bool by_model_;
  const bool outer_inside_, outer_may_keep_;
  at::ScalarType type_ = at::kFloat;
  bool caches_ = true;
};

/// The device of the first placed or marked argument.
std::optional<at::DeviceType> device_of(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<at::DeviceType> device;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (!device && tensor.key_set().has(kPlacedKey)) device = tensor.device().type();
  });
  return device;
}

/// The precision of the first followed argument's model; null where none is.
const Precision* precision_of(c10::ArrayRef<c10::IValue> arguments) {
  const Precision* precision = nullptr;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (precision != nullptr || !tensor.key_set().has(kPlacedKey)) return;
    const LayoutPtr own = layout(tensor);
    if (own && own->followed() && !is_gradient(tensor)) precision = &own->context()->precision;
  });
  return precision;
}

bool in_backward() {
  return !forward_again && torch::autograd::get_current_graph_task_id() != -1;
}

/// The type that the model's precision has for the call.
std::optional<at::ScalarType> type_by_model(c10::ArrayRef<c10::IValue> arguments) {
  if (inside_kernel) return std::nullopt;
  const Precision* const precision = precision_of(arguments);
  if (precision == nullptr || !precision->autocast) return std::nullopt;
  // Within a guard, where it is not on: the program has switched it off.
  if (in_backward() || is_within_autocast_guard()) return std::nullopt;
  return precision->autocast;
}

/// What keeps casts of the weight that `parameter` is, or null.
WeightCasts* casts_of(const at::Tensor& parameter) {
  const Mark* const mark = mark_of(parameter);
  // What data replicas keep parts of is whole for a moment only.
  if (mark == nullptr || !mark->layout->followed() || mark->sharded) return nullptr;
  return mark->layout->context()->weight_casts.get();
}

/// The cast of a placed tensor that is a view of a parameter; undefined for any other.
at::Tensor cast_of_view(const at::Tensor& tensor, at::ScalarType type) {
  const at::Tensor parameter = viewed_parameter(tensor);
  WeightCasts* const casts = parameter.defined() ? casts_of(parameter) : nullptr;
  if (casts == nullptr || !parameter.is_leaf()) return {};
  const PlacedTensorImpl& view = *placed_impl(tensor);
  const Value value = unwrap(tensor);
  if (value.elsewhere()) return {};
  const at::Tensor cast = casts->of_view(parameter, value.local, type);
  if (!cast.defined()) return {};
  at::Tensor placed = wrap_view({cast, value.layout}, view.strides(), nullptr, true);
  PlacedTensorImpl& own = *placed_impl(placed);
  own.set_weight_uses(view.weight_uses());
  GraphPlace::of(own).set_leaf(parameter);
  return placed;
}

}  // namespace

at::Tensor viewed_parameter(const at::Tensor& view) {
  const PlacedTensorImpl* const impl = placed_impl(view);
  if (impl == nullptr || impl->partial() || impl->gathered_view()) return {};
  const GraphPlace* const place = GraphPlace::find(*impl);
  if (place == nullptr || !place->views_leaf()) return {};
  return placed_impl(place->leaf()) == nullptr ? place->leaf() : at::Tensor();
}

bool run_under_autocast(const OperatorEntry& op, torch::jit::Stack& stack) {
  if (!op.autocasts) return false;
  const c10::ArrayRef<c10::IValue> all(stack);
  const auto arguments = all.slice(stack.size() - op.arguments);
  const auto device = device_of(arguments);
  if (!device || !at::autocast::is_autocast_available(*device)) return false;
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(*device);
  if (!op.handle.hasKernelForDispatchKey(key)) return false;
  std::optional<at::ScalarType> type;
  if (on_by_model && at::autocast::is_autocast_enabled(*device)) {
    type = at::autocast::get_autocast_dtype(*device);
  } else if (!at::autocast::is_autocast_enabled(*device)) {
    type = type_by_model(arguments);
    if (!type) return false;
  }
  const KernelScope scope(*device, type);
  op.handle.callBoxedForDispatchKey(key, stack);
  return true;
}

AutocastOfParts::AutocastOfParts(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.composite) return;
  const auto device = device_of(arguments);
  if (!device || !at::autocast::is_autocast_available(*device)) return;
  if (at::autocast::is_autocast_enabled(*device)) return;
  const auto type = type_by_model(arguments);
  if (!type) return;
  device_ = device;
  type_ = at::autocast::get_autocast_dtype(*device);
  caches_ = at::autocast::is_autocast_cache_enabled();
  outer_keeps_ = std::exchange(model_keeps_casts, keeps_casts());
  outer_by_model_ = std::exchange(on_by_model, true);
  at::autocast::set_autocast_dtype(*device, *type);
  at::autocast::set_autocast_cache_enabled(false);
  at::autocast::set_autocast_enabled(*device, true);
}

AutocastOfParts::~AutocastOfParts() {
  if (!device_) return;
  at::autocast::set_autocast_enabled(*device_, false);
  at::autocast::set_autocast_cache_enabled(caches_);
  at::autocast::set_autocast_dtype(*device_, type_);
  model_keeps_casts = outer_keeps_;
  on_by_model = outer_by_model_;
}

bool take_kept_cast(const OperatorEntry& op, torch::jit::Stack& stack) {
  if (!op.to_type || !may_keep_casts || !inside_kernel) return false;
  c10::IValue* const arguments = &stack[stack.size() - op.arguments];
  const at::Tensor& tensor = arguments[0].toTensor();
  const at::ScalarType type = arguments[1].toScalarType();
  at::Tensor kept;
  if (placed_impl(tensor) != nullptr) {
    kept = cast_of_view(tensor, type);
  } else if (WeightCasts* const casts = casts_of(tensor)) {
    kept = casts->of(tensor, type);
  }
  if (!kept.defined()) return false;
  torch::jit::drop(stack, op.arguments);
  stack.emplace_back(std::move(kept));
  return true;
}

bool is_inside_autocast() {
  return inside_kernel;
}

AutocastState::AutocastState()
    : inside_kernel_(inside_kernel),
      may_keep_casts_(may_keep_casts),
      on_by_model_(on_by_model),
      model_keeps_casts_(model_keeps_casts) {}

void AutocastState::set() const {
  types_.set();
  inside_kernel = inside_kernel_;
  may_keep_casts = may_keep_casts_;
  on_by_model = on_by_model_;
  model_keeps_casts = model_keeps_casts_;
}

CastsOfModelOnly::CastsOfModelOnly() : outer_(std::exchange(keeps_without_cache, keeps_casts())) {}
CastsOfModelOnly::~CastsOfModelOnly() {
  keeps_without_cache = outer_;
}

ForwardAgain::ForwardAgain() : outer_(std::exchange(forward_again, true)) {}
ForwardAgain::~ForwardAgain() {
  forward_again = outer_;
}

}  // namespace oslo
