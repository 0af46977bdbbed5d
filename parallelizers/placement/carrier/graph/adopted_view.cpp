#include "parallelizers/placement/carrier/graph/adopted_view.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

at::Tensor alias_of(const at::Tensor& base) {
  return value_of_marked(base, *mark_of(base)).local;
}

/// Whether an alias that was taken of `base` before stands where `base` stands now.
bool stands_with(const at::Tensor& alias, const at::Tensor& base) {
  if (!base.requires_grad()) return true;
  if (!alias.requires_grad()) return false;
  if (!mark_of(base)->layout->here()) return true;  // no graph leads to it
  const auto& now = base.grad_fn();
  const auto& then = alias.grad_fn();
  if (then == now) return true;
  return then != nullptr && then->name() == "OsloUnmark" && then->next_edge(0).function == now;
}

}  // namespace

at::Tensor adopted_base(const at::Tensor& view) {
  at::Tensor base;
  if (const PlacedTensorImpl* impl = placed_impl(view)) {
    if (const GraphPlace* place = GraphPlace::find(*impl)) base = place->leaf();
  } else if (mark_of(view) != nullptr && view.is_view()) {
    base = at::Tensor(view._base());
  }
  return base.defined() && is_adopted(base) ? base : at::Tensor();
}

at::Tensor writable_view(const at::Tensor& marked_view) {
  const BelowDoor below;
  const at::Tensor base(marked_view._base());
  const at::Tensor alias = alias_of(base);
  const int64_t start = marked_view.storage_offset() - base.storage_offset();
  return alias.as_strided(marked_view.sizes(), marked_view.strides(),
                          alias.storage_offset() + start);
}

void follow_view(const at::Tensor& base, const at::Tensor& local) {
  const at::Tensor alias = local.is_view() ? at::Tensor(local._base()) : local;
  const auto& history = alias.grad_fn();
  if (!history || history->name() == "OsloUnmark") return;  // the write records no gradient
  torch::autograd::impl::set_gradient_edge(base, torch::autograd::impl::gradient_edge(alias));
}

at::Tensor view_as_of_now(const at::Tensor& local, const at::Tensor& base, bool moved) {
  if (!local.is_view()) return local;
  const BelowDoor below;
  const at::Tensor before(local._base());
  if (!moved && stands_with(before, base)) return local;
  const at::Tensor alias = alias_of(base);
  const int64_t start = local.storage_offset() - before.storage_offset();
  return alias.as_strided(local.sizes(), local.strides(), alias.storage_offset() + start);
}

}  // namespace oslo
