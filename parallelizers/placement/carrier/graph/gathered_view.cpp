#include "parallelizers/placement/carrier/graph/gathered_view.h"

#include <c10/core/GradMode.h>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

GatheredBase::GatheredBase(at::Tensor base, Value held)
    : base_(std::move(base)),
      base_sizes_(base_.sizes().begin(), base_.sizes().end()),
      base_strides_(base_.strides().begin(), base_.strides().end()),
      held_(std::move(held)),
      taken_(now()) {}

bool GatheredBase::keeps_shape() const {
  return base_.sizes() == c10::IntArrayRef(base_sizes_) &&
         base_.strides() == c10::IntArrayRef(base_strides_);
}

GatheredBase::Moment GatheredBase::now() const {
  const PlacedTensorImpl* impl = placed_impl(base_);
  Moment moment{impl != nullptr ? impl->value().local : base_};
  const auto& counter = moment.local.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) moment.version = counter.current_version();
  // Any of them may have been to this.
  moment.uncounted = held_.layout->context()->uncounted_writes();
  return moment;
}

bool GatheredBase::stale() const {
  if (!(taken_ == now())) return true;
  const PlacedTensorImpl* impl = placed_impl(base_);
  return impl != nullptr && impl->gathered_view() && impl->gathered_view()->of->stale();
}

void GatheredBase::written_back() {
  taken_ = now();
}

at::Tensor GatheredView::take_again(bool detached) const {
  OSLO_CHECK(of->keeps_shape(), "a view that had to be gathered (", op.operator_name(),
             ") is used after the tensor that it views was given another shape in place; take the "
             "view after that, or clone() it before");
  // Inside a rule or the autograd engine the door may be shut.
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard open(keys.included_, keys.excluded_.remove(kPlacedKey));
  const c10::AutoGradMode as_before(recorded && !detached);
  torch::jit::Stack stack(arguments);
  op.callBoxed(&stack);
  const c10::IValue& again = stack[result];
  return again.isTensorList() ? again.toTensorVector()[element] : again.toTensor();
}

}  // namespace oslo
