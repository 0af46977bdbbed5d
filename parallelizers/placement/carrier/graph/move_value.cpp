#include "parallelizers/placement/carrier/graph/move_value.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

#include "parallelizers/libtorch/version_bit.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

bool may_move(const at::Tensor& target) {
  if (target.is_inference() || c10::InferenceMode::is_enabled()) return false;
  if (target.requires_grad() && !c10::GradMode::is_enabled()) return false;
  if (const PlacedTensorImpl* impl = placed_impl(target)) {
    if (impl->gathered_view()) return false;
    const GraphPlace* const place = GraphPlace::find(*impl);
    return place == nullptr || (!place->views_leaf() && !place->base().defined() &&
                                place->state() != GraphPlace::State::leaf);
  }
  const Mark* mark = mark_of(target);
  const bool leaf = target.requires_grad() && target.is_leaf();
  return mark != nullptr && !mark->accumulator && !target.is_view() && !leaf;
}

void move_value(const at::Tensor& target, Value value) {
  leave_behind(*target.unsafeGetTensorImpl());
  if (PlacedTensorImpl* impl = placed_impl(target)) {
    const auto sizes = value.sizes();
    GraphPlace::of(*impl).replace_value(std::move(value));
    impl->stride(c10::contiguous_strides(sizes));
    return;
  }
  const BelowDoor below;
  const std::string name = mark_of(target)->name;
  target.unsafeGetTensorImpl()->shallow_copy_from(value.local.getIntrusivePtr());
  mark_in_place(target, value.layout, name);
  if (!value.local.requires_grad()) return;
  torch::autograd::impl::set_gradient_edge(target,
                                           torch::autograd::impl::gradient_edge(value.local));
}

}  // namespace oslo
