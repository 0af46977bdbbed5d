#include "parallelizers/placement/gathered_view.h"

#include <c10/core/GradMode.h>

#include "parallelizers/placement/mark.h"
#include "parallelizers/placement/placed_tensor.h"

namespace oslo {

GatheredBase::GatheredBase(at::Tensor base, Value held)
    : base_(std::move(base)), held_(std::move(held)), taken_(now()) {}

GatheredBase::Moment GatheredBase::now() const {
  const PlacedTensorImpl* impl = placed_impl(base_);
  Moment moment{impl != nullptr ? impl->value().local : base_};
  const auto& counter = moment.local.unsafeGetTensorImpl()->version_counter();
  if (counter.enabled()) moment.version = counter.current_version();
  // Any of them may have been to this.
  moment.uncounted = held_.layout->mesh()->uncounted_writes();
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

at::Tensor GatheredView::take_again() const {
  // Inside a rule or the autograd engine the door may be shut.
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard open(keys.included_, keys.excluded_.remove(kPlacedKey));
  const c10::AutoGradMode as_before(recorded);
  torch::jit::Stack stack(arguments);
  op->handle.callBoxed(&stack);
  const c10::IValue& again = stack[result];
  return again.isTensorList() ? again.toTensorVector()[element] : again.toTensor();
}

}  // namespace oslo
