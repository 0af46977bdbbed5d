#include "parallelizers/placement/layout/value.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "mpu/base/error.h"
#include "mpu/base/foreign_scope.h"
#include "mpu/collectives/collectives.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/layout/memory_order.h"

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
  at::Tensor part =
      scatter_to(cut->by_rank(value.local, dim), context->mesh().axis(axis), dim, cut->sizes());
  return {std::move(part), with_axis(value, context, axis, {dim, cut})};
}

Value copy_axis(Value value, const Mesh& mesh, int axis) {
  value.local = copy_to(value.local, mesh.axis(axis));
  return value;
}

at::Tensor reduce_axis(at::Tensor partial, const Mesh& mesh, int axis) {
  return reduce_from(std::move(partial), mesh.axis(axis));
}

namespace {

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

}  // namespace

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
  value.local = reduce_axis(std::move(value.local), context.mesh(), sum->axis);
  return value;
}

Value scatter_axis(Value partial, const ContextPtr& context, int axis, int64_t dim) {
  const auto& group = context->mesh().axis(axis);
  CutPtr cut = cut_inside(partial.layout.get(), Placement::shard(dim), partial.local.size(dim),
                          group->size());
  at::Tensor part = reduce_and_scatter(partial.local, group, dim, cut->sizes());
  return {std::move(part), with_axis(partial, context, axis, {dim, std::move(cut)})};
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
  at::Tensor whole = gather_all(value).local;
  if (ForeignScope::active()) return whole;
  value.layout->context()->gathers().record(
      operation, reason,
      (whole.numel() - value.local.numel()) * static_cast<int64_t>(whole.element_size()));
  return whole;
}

Value redistribute(Value value, const LayoutPtr& target) {
  if (!target) return gather_all(std::move(value));
  if (value.layout && *value.layout == *target) return value;
  const int axes = target->axes();
  // What lies inside a cut that differs is undone with it, and made again.
  for (int axis = axes - 1; axis >= 0; --axis) {
    if (value.layout && !((*value.layout)[axis] == (*target)[axis])) {
      value = gather_axis(std::move(value), axis);
    }
  }
  for (const int axis : target->nesting()) {
    const auto& [dim, cut] = (*target)[axis];
    if (dim < 0 || (value.layout && (*value.layout)[axis].dim == dim)) continue;
    value = split_axis(std::move(value), target->context(), axis, dim, cut);
  }
  return value;
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
