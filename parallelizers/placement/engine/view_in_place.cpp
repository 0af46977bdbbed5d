#include "parallelizers/placement/engine/view_in_place.h"

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/in_place.h"

namespace oslo {
namespace {

/// Another tensor over the elements of `target`, with its shape and its place in the graph.
at::Tensor as_before(const at::Tensor& target) {
  PlacedTensorImpl& impl = *placed_impl(target);
  const Value value = unwrap(target);
  at::Tensor before = wrap_view(value, target.strides(), impl.gathered_view());
  if (PlacedTensorImpl* copy = placed_impl(before)) {
    if (impl.detached()) copy->set_detached();
    const GraphPlace& from = GraphPlace::of(impl);
    GraphPlace& to = GraphPlace::of(*copy);
    if (const at::Tensor base = from.base(); base.defined()) to.set_base(base);
    to.set_leaf(from.leaf());
    share_version(before, target);
  }
  return before;
}

}  // namespace

void view_in_place(Call& call, const TakeView& view) {
  const at::Tensor target = call.tensor(0);
  if (const Mark* mark = mark_of(target)) {
    fail(call.name(), " would change the shape of parallel parameter ", mark->name,
         ", whose layout speaks of the one it has; use the operator that returns a view");
  }
  check_writable(target, call.name());
  PlacedTensorImpl& impl = *placed_impl(target);
  const at::Tensor taken = view(as_before(target));
  const PlacedTensorImpl* const seen = placed_impl(taken);
  OSLO_CHECK(seen != nullptr, call.name(), " on a tensor that is cut over ranks left none");
  if (!impl.is_inference()) impl.bump_version();
  impl.set_gathered_view(seen->gathered_view());
  Value value = seen->value();
  const auto sizes = value.sizes();
  impl.set_sizes_and_strides(sizes, taken.strides());
  GraphPlace::of(impl).replace_value(std::move(value));
  impl.stride(taken.strides());
  call.result_plain(target);
}

}  // namespace oslo
