// What a Call makes of the results of view operators.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/graph/adopted_view.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/elsewhere/shape_call.h"
#include "parallelizers/placement/elsewhere/stage_call.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/global_strides.h"
#include "parallelizers/placement/layout/memory_order.h"

namespace oslo {

/// A view operator's result on the placed or marked argument 0.
at::Tensor Call::wrapped_view(Value value, const Value* held, size_t element) {
  const at::Tensor base = tensor(0);
  const PlacedTensorImpl* impl = placed_impl(base);
  const bool aliases = impl == nullptr || value.local.is_alias_of(impl->value().local);
  if (held != nullptr && !gathered_) gathered_ = std::make_shared<GatheredBase>(base, *held);
  std::shared_ptr<GatheredBase> of = held != nullptr ? gathered_ : nullptr;
  // A view of a view that had to gather shares its fate.
  if (!of && aliases && impl != nullptr && impl->gathered_view()) of = impl->gathered_view()->of;
  const auto strides = strides_of_view(value, of != nullptr, element);
  if (!strides.empty() && !aliases && !of) {
    const BelowDoor below;
    value.local = in_order_of(std::move(value.local), value.sizes(), strides);
  }
  if (place_.on_zeros && !all_known(arguments())) value.local = shape_of(value.local);
  std::shared_ptr<const GatheredView> gathered;
  if (of) {
    if (!value.layout) value.layout = std::make_shared<Layout>(context_);
    gathered = std::make_shared<GatheredView>(of, op_.handle, arguments().vec(), results_.size(),
                                              element, c10::GradMode::is_enabled());
  }
  const bool weight = op_.same_weight && weight_uses_of(base) != nullptr;
  // It is to follow a copy of a parameter, even one that is whole on this mesh.
  const bool follows = (impl == nullptr && is_adopted(base)) || adopted_base(base).defined();
  if (follows && !value.layout) value.layout = std::make_shared<Layout>(context_);
  at::Tensor view = wrap_view(std::move(value), strides, std::move(gathered), weight || follows);
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
std::vector<int64_t> Call::strides_of_view(const Value& value, bool gathered,
                                           size_t element) const {
  const at::Tensor base = tensor(0);
  const LayoutPtr from = layout(base);
  const PlacedTensorImpl* of = placed_impl(base);
  const bool aliases = of == nullptr || value.local.is_alias_of(of->value().local);
  const bool told = aliases || (of->is_contiguous() && value.local.is_contiguous());
  if (!value.cut() && !gathered) return {};
  if (asks_for_order(op_, arguments())) {
    return strides_on_one_device(*context_, op_, arguments(), results_.size(), element);
  }
  if (!gathered && told && value.layout->tells_strides() && from->tells_strides()) return {};
  if (op_.pointwise) {  // detach, to
    const bool keeps = of != nullptr && (aliases || base.is_non_overlapping_and_dense());
    if (keeps) return base.strides().vec();
    if (of != nullptr && !base.is_contiguous()) {
      return strides_on_one_device(*context_, op_, arguments(), results_.size(), element);
    }
    return {};
  }
  const c10::AutoGradMode no_grad(false);
  const BelowDoor below;
  torch::jit::Stack stack(arguments().begin(), arguments().end());
  stack[0] = whole_shape(base);
  op_.handle.callBoxed(&stack);
  const c10::IValue& result = stack[results_.size()];
  const at::Tensor view =
      result.isTensorList() ? result.toTensorVector()[element] : result.toTensor();
  OSLO_CHECK(view.sizes() == c10::IntArrayRef(value.sizes()), name(), ": a view of shape ",
             c10::IntArrayRef(value.sizes()), " is one of ", view.sizes(), " on one device");
  return view.strides().vec();
}

}  // namespace oslo
