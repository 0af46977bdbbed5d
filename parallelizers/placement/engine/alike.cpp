#include "parallelizers/placement/engine/alike.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "mpu/group/rank_check.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

/// Whether a plain tensor can stand beside values of `layout` and `dims` dimensions as it is: it
/// has no gradient to reduce, and nothing to cut.
bool fits_beside(const at::Tensor& plain, const Layout& layout, int64_t dims) {
  if (plain.requires_grad() && c10::GradMode::is_enabled()) return false;
  if (has_tangent(plain)) return false;
  if (plain.dim() > dims) return false;
  for (int axis = 0; axis < layout.axes(); ++axis) {
    if (layout[axis].whole()) continue;
    const int64_t dim = layout[axis].dim - (dims - plain.dim());
    if (dim >= 0 && plain.size(dim) != 1) return false;
  }
  return true;
}

}  // namespace

bool Alike::plain_fits() const {
  if (checks_ranks()) return false;  // the door compares them
  for (size_t i = 0; i < plain_count_; ++i) {
    if (!fits_beside(*plain_[i], *first_->value().layout, first_->dim())) return false;
  }
  return true;
}

/// A model whose values lie on stages, are followed, or are looked at has more to do.
bool AlikeParts::lies(const LayoutPtr& layout, const at::Tensor& local) {
  if (local.layout() != at::kStrided || !local.is_contiguous()) return false;
  if (layout_ != nullptr) {
    const Layout &own = *layout, &first = **layout_;
    return local.sizes() == sizes_ &&
           (&own == &first || (own.context() == first.context() && own == first));
  }
  layout_ = &layout;
  sizes_ = local.sizes();
  const ModelContext& context = *layout->context();
  return context.residence() == nullptr && !context.follows() && context.observer == nullptr &&
         context.gather_watch == nullptr;
}

}  // namespace oslo
