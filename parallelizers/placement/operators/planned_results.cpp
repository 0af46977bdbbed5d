#include "parallelizers/placement/operators/planned_results.h"

namespace oslo {
namespace {

int64_t planned_dimension(int64_t dim, const Value& value, const WeightUse& use, const char* what) {
  const int64_t dims = value.dim(), from_front = dim < 0 ? dim + dims : dim;
  if (from_front >= 0 && from_front < dims) return from_front;
  throw PlanMismatch(c10::str(use.planned, " has ", what, " cut along dimension ", dim, ", and ",
                              RuleScope::current(), " met one of shape ",
                              c10::IntArrayRef(value.sizes()),
                              "; name a dimension that there is (-1 is the last), or none"));
}

/// Takes this rank's part of `value`, inside what cuts it already.
Value take_part(Value value, const ContextPtr& context, int axis, const Placement& placement) {
  const int64_t dim = placement.dim();
  const CutPtr cut = cut_inside(value.layout.get(), placement, value.local.size(dim),
                                context->mesh().axis(axis)->size());
  return split_axis(std::move(value), context, axis, dim, cut);
}

/// The sum stays partial on `axis` until the others that it joins are there.
Value let_wait(Value value, const ContextPtr& context, int axis, const WeightUse& use) {
  const AxisUse& own = use[axis];
  PartialSum sum{axis, {own.sum}, own.parts};
  if (!value.layout) value.layout = std::make_shared<Layout>(context);
  if (own.result == AxisUse::Result::join_scatter) {
    const int64_t dim = planned_dimension(own.dim, value, use, "its result");
    sum.after = (*scattered_layout(value, context, axis, dim))[axis];
  }
  value.partial = std::make_shared<const PartialSum>(std::move(sum));
  return value;
}

}  // namespace

int planned_weight(std::span<const Value> operands) {
  int found = -1;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].use.empty()) continue;
    if (found >= 0) return -1;
    found = static_cast<int>(i);
  }
  return found;
}

void cut_inputs(std::span<Value> operands, const ContextPtr& context, int weight) {
  const WeightUse use = operands[weight].use;
  for (int axis = 0; axis < context->mesh().axes(); ++axis) {
    if (!use[axis].input_dim || context->mesh().axis(axis)->size() == 1) continue;
    for (size_t i = 0; i < operands.size(); ++i) {
      Value& input = operands[i];
      if (static_cast<int>(i) == weight || !input.defined()) continue;
      if (input.layout && !(*input.layout)[axis].whole()) continue;
      const int64_t dim = planned_dimension(*use[axis].input_dim, input, use, "its input");
      input =
          take_part(std::move(input), context, axis,
                    use[axis].input_head_tail ? Placement::head_tail(dim) : Placement::shard(dim));
    }
  }
}

Value finish_result(Value local, const ContextPtr& context, const Axes& partial, const Axes& free,
                    const WeightUse& use, bool may_wait) {
  Value value = std::move(local);
  if (may_wait && !use.empty() && partial.size() == 1 && use[partial[0]].joins()) {
    return let_wait(std::move(value), context, partial[0], use);
  }
  const auto scattered = [&](int axis) {
    if (use.empty()) return false;
    return use[axis].result == AxisUse::Result::scatter ||
           use[axis].result == AxisUse::Result::join_scatter;
  };
  for (const int axis : partial) {  // first: what is left to all-reduce is less
    if (!scattered(axis)) continue;
    const int64_t dim = planned_dimension(use[axis].dim, value, use, "its result");
    value = scatter_axis(std::move(value), context, axis, dim);
  }
  for (const int axis : partial) {
    if (!scattered(axis)) value.local = reduce_axis(std::move(value.local), context->mesh(), axis);
  }
  for (const int axis : free) {
    if (use[axis].result != AxisUse::Result::split || context->mesh().axis(axis)->size() == 1)
      continue;
    const int64_t dim = planned_dimension(use[axis].dim, value, use, "its result");
    value = take_part(std::move(value), context, axis, Placement::shard(dim));
  }
  return value;
}

}  // namespace oslo
