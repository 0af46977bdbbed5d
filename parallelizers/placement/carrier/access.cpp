#include "parallelizers/placement/carrier/access.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/carrier/whole_gradients.h"
#include "parallelizers/placement/layout/moving/redistribute.h"

namespace oslo {
namespace {

/// What the first stage that holds it has, on every rank.
at::Tensor from_stage(const at::Tensor& whole, const Layout& layout) {
  const ModelContext& context = *layout.context();
  OSLO_CHECK(!whole.requires_grad() || !c10::GradMode::is_enabled() || !context.in_step(),
             "full_tensor of a value that pipeline ", layout.stages().to_string(),
             " holds gives it to all ranks without its history, and in a step a gradient would be "
             "lost; compute with the value itself, or take it under torch::NoGradGuard");
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const int owner = context.stage_ranks().rank_of(layout.stages().first());
  at::Tensor all = context.stage_ranks().rank() == owner
                       ? whole.clone(at::MemoryFormat::Contiguous)
                       : at::empty(whole.sizes(), whole.options().device(context.device()));
  context.pipeline()->broadcast(all, owner);
  return all;
}

}  // namespace

Value value_of(const at::Tensor& tensor) {
  Value value;
  if (placed_impl(tensor) != nullptr) {
    value = unwrap(tensor);
  } else if (const Mark* mark = mark_of(tensor)) {
    value = value_of_marked(tensor, *mark);
  } else {
    return {tensor, nullptr};
  }
  const bool ordered = tensor.layout() == at::kStrided && !tensor.is_contiguous();
  if (ordered) value.strides = tensor.strides().vec();
  return value;
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  if (!is_placed(tensor)) return tensor;
  const RuleScope scope("full_tensor");
  const Value value = value_of(tensor);
  Value whole = gather_all(value);
  if (!value.layout->resident()) {
    at::Tensor result = std::move(whole.local);
    gather_gradients_of({result});
    return result;
  }
  if (value.layout->context()->pipeline()) return from_stage(whole.local, *value.layout);
  whole.layout = std::make_shared<Layout>(value.layout->context(), value.layout->stages());
  return wrap(std::move(whole));
}

at::Tensor local_tensor(const at::Tensor& tensor) {
  if (!is_placed(tensor)) return tensor;
  Value value = value_of(tensor);
  OSLO_CHECK(!value.elsewhere() || value.layout->context()->imagined() != nullptr,
             "local_tensor of a tensor that pipeline ", value.layout->stages().to_string(),
             " holds: this rank has its shape only; oslo::is_here(t) says whether there is a part");
  return std::move(value.local);
}

bool is_here(const at::Tensor& tensor) {
  const LayoutPtr own = layout(tensor);
  return !own || own->here();
}

bool is_followed(const at::Tensor& tensor) {
  const LayoutPtr own = layout(tensor);
  return own && own->followed();
}

bool is_placed(const at::Tensor& tensor) {
  return tensor.defined() && (placed_impl(tensor) != nullptr || mark_of(tensor) != nullptr);
}

LayoutPtr layout(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (const PlacedTensorImpl* impl = placed_impl(tensor)) return ended_layout(impl->unfinished());
  const Mark* mark = mark_of(tensor);
  return mark == nullptr ? nullptr : mark->layout;
}

std::vector<int64_t> whole_sizes(const at::Tensor& tensor) {
  const Mark* const mark = placed_impl(tensor) != nullptr ? nullptr : mark_of(tensor);
  if (mark == nullptr) return tensor.sizes().vec();
  const auto sizes = mark->layout->global_sizes(tensor.sizes());
  return {sizes.begin(), sizes.end()};
}

at::Tensor distribute(const at::Tensor& whole, const MeshPtr& mesh,
                      const std::vector<Placement>& placements) {
  return distribute(whole, context_of(mesh), placements);
}

at::Tensor distribute(const at::Tensor& whole, const ContextPtr& context,
                      const std::vector<Placement>& placements) {
  OSLO_CHECK(!is_placed(whole), "distribute takes an ordinary tensor; this one is placed already");
  const RuleScope scope("distribute");
  auto layout = std::make_shared<Layout>(make_layout(context, placements, whole.sizes()));
  return wrap(redistribute({whole, nullptr}, std::move(layout)));
}

at::Tensor from_local(const at::Tensor& part, const MeshPtr& mesh,
                      const std::vector<Placement>& placements, c10::IntArrayRef global_sizes) {
  return from_local(part, context_of(mesh), placements, global_sizes);
}

at::Tensor from_local(const at::Tensor& part, const ContextPtr& context,
                      const std::vector<Placement>& placements, c10::IntArrayRef global_sizes) {
  auto layout = std::make_shared<Layout>(make_layout(context, placements, global_sizes));
  c10::SmallVector<int64_t, 6> expected(global_sizes.begin(), global_sizes.end());
  for (const int axis : layout->nesting()) {
    const auto& [dim, cut] = (*layout)[axis];
    if (dim >= 0) expected[dim] = cut->local_size(layout->group(axis)->rank());
  }
  OSLO_CHECK(part.sizes() == c10::IntArrayRef(expected), "from_local: a part of shape ",
             part.sizes(), " was given, the placements leave ", c10::IntArrayRef(expected), " of ",
             global_sizes, " on this rank");
  at::Tensor local = part;
  if (part.requires_grad()) {
    // The placed tensor may give its local one a place in the graph that is not the caller's.
    const c10::AutoGradMode record(true);
    local = part.view_as(part);
  }
  return wrap({std::move(local), std::move(layout)});
}

bool has_tangent(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->autograd_meta() != nullptr && tensor._fw_grad(0).defined();
}

void refuse_tangents(const char* operation) {
  fail(operation,
       " with forward-mode derivatives (at::_make_dual) beside values that are cut over ranks: "
       "collectives would lose them; use backward, or a double backward for products with a "
       "Jacobian");
}

}  // namespace oslo
