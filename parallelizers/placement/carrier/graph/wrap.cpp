// Values go into placed tensors here, and out of them. (Nodes of the graph do so as well, and a
// placed tensor has a place in the graph: these functions stand above both.)
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/graph/adopted_view.h"
#include "parallelizers/placement/carrier/graph/gathered_view.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/carrier/stayed_behind.h"
#include "parallelizers/placement/layout/moving/redistribute.h"

namespace oslo {

at::Tensor wrap(Value value) {
  return value.stays_placed() ? wrap_placed(std::move(value)) : std::move(value.local);
}

at::Tensor wrap_placed(Value value) {
  make_told(value);
  at::Tensor placed(c10::make_intrusive<PlacedTensorImpl>(std::move(value)));
  GraphPlace::give(*placed_impl(placed));
  return placed;
}

at::Tensor wrap_like(Value value, const PlacedTensorImpl& like) {
  at::Tensor placed(c10::make_intrusive<PlacedTensorImpl>(std::move(value), like));
  GraphPlace::give(*placed_impl(placed));
  return placed;
}

at::Tensor wrap_view(Value value, c10::IntArrayRef strides,
                     std::shared_ptr<const GatheredView> gathered, bool even_whole) {
  if (!gathered && !value.stays_placed() && !even_whole) return std::move(value.local);
  auto impl = c10::make_intrusive<PlacedTensorImpl>(std::move(value), std::move(gathered));
  if (!strides.empty()) impl->stride(strides);
  at::Tensor placed(std::move(impl));
  GraphPlace::give(*placed_impl(placed));
  return placed;
}

void share_version(const at::Tensor& view, const at::Tensor& base) {
  if (view.is_inference() || base.is_inference()) return;
  view.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
}

Value unwrap(const at::Tensor& placed) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  if (impl.value().elsewhere()) impl.value().layout->context()->check_not_ended();
  check_not_left_behind(impl);
  if (impl.gathered_view() && impl.gathered_view()->of->stale()) {
    const c10::InferenceMode as_made(impl.is_inference());
    const at::Tensor again = impl.gathered_view()->take_again(impl.detached());
    const PlacedTensorImpl& taken = *placed_impl(again);
    impl.set_gathered_view(taken.gathered_view());
    GraphPlace& place = GraphPlace::of(impl);
    place.unbridge();
    place.replace_value(taken.value());
  }
  if (!c10::GradMode::is_enabled()) return impl.value();
  GraphPlace* const place = GraphPlace::find(impl);
  if (place == nullptr) return impl.value();
  if (!impl.gathered_view() && place->views_leaf() && is_adopted(place->leaf())) {
    const at::Tensor now = view_as_of_now(impl.value().local, place->leaf(), /*moved=*/false);
    if (!now.is_same(impl.value().local)) place->replace_value({now, impl.value().layout});
  }
  if (place->at_local()) return impl.value();
  if (follows_base(*place)) GraphPlace::of(*placed_impl(place->base())).bridged_local();
  if (!place->stands_elsewhere()) return impl.value();
  return {place->bridged_local(), impl.value().layout};
}

at::Tensor local_in(at::Tensor tensor, const LayoutPtr& layout) {
  const BelowDoor below;
  Value value = placed_impl(tensor) != nullptr ? unwrap(tensor) : Value{tensor, nullptr};
  tensor.reset();  // so that what it held can be taken over without a copy
  return redistribute(std::move(value), layout).local;
}

}  // namespace oslo
