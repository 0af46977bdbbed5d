#include "parallelizers/placement/layout/value.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "mpu/base/error.h"
#include "mpu/base/foreign_scope.h"
#include "mpu/collectives/collectives.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/layout/gather_watch.h"
#include "parallelizers/placement/layout/memory_order.h"
#include "parallelizers/placement/layout/purpose.h"

namespace oslo {
namespace {

/// What `rank` keeps of a dimension: a view, or its stretches joined. Elements of other ranks are
/// not read: `whole` may be a mapped file.
at::Tensor own_stretches(const at::Tensor& whole, const Cut& cut, int64_t dim, int rank) {
  std::vector<at::Tensor> pieces;
  int64_t start = 0;
  for (const Cut::Run& run : cut.runs()) {
    for (int64_t i = 0; i < run.repeat; ++i) {
      for (int r = 0; r < cut.ranks(); ++r) {
        if (r == rank) pieces.push_back(whole.narrow(dim, start, run.pieces[r]));
        start += run.pieces[r];
      }
    }
  }
  return pieces.size() == 1 ? pieces.front() : at::cat(pieces, dim);
}

LayoutPtr with_axis(const Value& value, const ContextPtr& context, int axis, Layout::AxisCut cut) {
  auto layout =
      value.layout ? std::make_shared<Layout>(*value.layout) : std::make_shared<Layout>(context);
  (*layout)[axis] = std::move(cut);
  return layout;
}

/// Where something uses one branch of a sum that the plan joined, which the example did not show:
/// whether all ranks do. Another collective than those of sums, so that a rank that is alone meets
/// none of theirs, whose numbers it would take for its own.
void check_all_end(const PartialSum& sum, const at::Tensor& part, const Mesh& mesh) {
  const auto& group = mesh.axis(sum.axis);
  const std::vector<int64_t> sizes(group->size(), 1);
  try {
    group->all_gather(at::zeros({1}, part.options().dtype(at::kByte)), 0, sizes);
  } catch (const PeerError& error) {
    throw PeerError(c10::str(
        RuleScope::current(), " uses one branch of a sum that the plan reduces as a whole (",
        "\"joined\" in parallel.plan()), perhaps on this rank alone, as a number that one rank "
        "prints; use it on every rank, or show it in InitializeOptions::example_inputs, on any "
        "rank, and branches are reduced one by one: ",
        error.what()));
  }
}

/// This rank's part, as `lies` has it on `axis`, of what the ranks' tensors are together.
at::Tensor scatter_sum(const at::Tensor& addend, const Layout& lies, int axis) {
  const auto& [dim, cut] = lies[axis];
  const AskerScope asker = AskerScope::with_purpose(purpose::kScatter);
  return reduce_and_scatter(addend, lies.group(axis), dim, cut->sizes());
}

}  // namespace

int64_t Value::size(int64_t dim) const {
  return layout ? layout->global_size(dim, local.size(dim)) : local.size(dim);
}

c10::SmallVector<int64_t, 6> Value::sizes() const {
  if (layout) return layout->global_sizes(local.sizes());
  return {local.sizes().begin(), local.sizes().end()};
}

Axes Value::axes_cutting(int64_t dim) const {
  return layout ? layout->axes_cutting(dim) : Axes();
}

bool Value::in_one_stretch(int64_t dim) const {
  const Axes cutting = axes_cutting(dim);
  return cutting.empty() || (cutting.size() == 1 && (*layout)[cutting[0]].cut->contiguous());
}

Value gather_axis(Value value, int axis, bool then_copy) {
  if (!value.layout || (*value.layout)[axis].whole()) return value;
  const int64_t dim = (*value.layout)[axis].dim;
  if (const int inner = value.axes_cutting(dim).back(); inner != axis) {
    return gather_axis(gather_axis(std::move(value), inner), axis, then_copy);
  }
  const auto [_, cut] = (*value.layout)[axis];
  const char* const asked = AskerScope::current().purpose;
  const AskerScope asker = AskerScope::with_purpose(*asked == '\0' ? purpose::kGather : asked);
  const auto& group = value.layout->group(axis);
  const at::Tensor joined = then_copy ? gather_and_copy(value.local, group, dim, cut->sizes())
                                      : gather_from(value.local, group, dim, cut->sizes());
  Value gathered{cut->in_order(joined, dim), with_axis(value, value.layout->context(), axis, {})};
  // A rule may have given it other dimensions.
  if (!value.strides.empty() && static_cast<int64_t>(value.strides.size()) == gathered.dim()) {
    gathered.local = in_order_of(std::move(gathered.local), gathered.sizes(), value.strides);
    gathered.strides = std::move(value.strides);
  }
  return gathered;
}

Value split_axis(Value value, const ContextPtr& context, int axis, int64_t dim, const CutPtr& cut) {
  for (const int other : value.axes_cutting(dim)) {
    const CutPtr& own = (*value.layout)[other].cut;
    if (own && own->family().size() >= cut->family().size()) {
      value = gather_axis(std::move(value), other);
    }
  }
  OSLO_CHECK(value.local.size(dim) == cut->size(), "dimension ", dim, " has ",
             value.local.size(dim), " elements on this rank, the cut divides ", cut->size());
  const AskerScope asker = AskerScope::with_purpose(purpose::kSplit);
  at::Tensor part =
      scatter_to(cut->by_rank(value.local, dim), context->mesh().axis(axis), dim, cut->sizes());
  return {std::move(part), with_axis(value, context, axis, {dim, cut})};
}

Value copy_axis(Value value, const Mesh& mesh, int axis) {
  const AskerScope asker = AskerScope::with_purpose(purpose::kCopy);
  value.local = copy_to(value.local, mesh.axis(axis));
  return value;
}

at::Tensor reduce_axis(at::Tensor partial, const Mesh& mesh, int axis) {
  const AskerScope asker = AskerScope::with_purpose(purpose::kReduce);
  return reduce_from(std::move(partial), mesh.axis(axis));
}

Value end_sum(Value value) {
  if (!value.partial) return value;
  const auto sum = std::move(value.partial);
  const ModelContext& context = *value.layout->context();
  if (context.sum_watch) context.sum_watch->ended(*sum);
  const bool elsewhere = value.elsewhere();
  const ForeignScope foreign(elsewhere && context.imagined() == nullptr);
  const c10::AutoGradMode records(c10::GradMode::is_enabled() || value.local.requires_grad());
  const BelowDoor below;
  if (sum->parts > 0 && !sum->complete() && !elsewhere)
    check_all_end(*sum, value.local, context.mesh());
  if (sum->after.whole()) {
    value.local = reduce_axis(std::move(value.local), context.mesh(), sum->axis);
    return value;
  }
  LayoutPtr lies = with_axis(value, value.layout->context(), sum->axis, sum->after);
  at::Tensor part = scatter_sum(value.local, *lies, sum->axis);
  return {std::move(part), std::move(lies)};
}

LayoutPtr ended_layout(const Value& value) {
  if (!value.partial || value.partial->after.whole()) return value.layout;
  return with_axis(value, value.layout->context(), value.partial->axis, value.partial->after);
}

LayoutPtr scattered_layout(const Value& partial, const ContextPtr& context, int axis, int64_t dim) {
  CutPtr cut = cut_inside(partial.layout.get(), Placement::shard(dim), partial.local.size(dim),
                          context->mesh().axis(axis)->size());
  return with_axis(partial, context, axis, {dim, std::move(cut)});
}

Value scatter_axis(Value partial, const ContextPtr& context, int axis, int64_t dim) {
  LayoutPtr lies = scattered_layout(partial, context, axis, dim);
  at::Tensor part = scatter_sum(partial.local, *lies, axis);
  return {std::move(part), std::move(lies)};
}

void announce_gather(const Value& value, const char* operation, const std::string& reason) {
  if (!value.cut()) return;
  const auto watch = value.layout->context()->gather_watch;
  if (watch) watch->about_to_gather({operation, reason, value.sizes(), *value.layout});
}

Value gather_all(Value value) {
  if (!value.layout) return value;
  for (int axis = value.layout->axes() - 1; axis >= 0; --axis) {
    value = gather_axis(std::move(value), axis);
  }
  value.layout = nullptr;
  return value;
}

at::Tensor gather_reported(const Value& value, const char* operation, const std::string& reason) {
  if (!value.cut()) return value.local;
  announce_gather(value, operation, reason);
  at::Tensor whole = gather_all(value).local;
  if (ForeignScope::active()) return whole;
  value.layout->context()->gathers().record(
      operation, reason,
      (whole.numel() - value.local.numel()) * static_cast<int64_t>(whole.element_size()));
  return whole;
}

at::Tensor local_part(const at::Tensor& whole, const Layout& layout) {
  at::Tensor part = whole;
  for (const int axis : layout.nesting()) {
    const auto& [dim, cut] = layout[axis];
    if (dim >= 0) part = own_stretches(part, *cut, dim, layout.group(axis)->rank());
  }
  return part;
}

}  // namespace oslo
