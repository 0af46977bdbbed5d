#include "parallelizers/placement/door/fallback.h"

#include <ATen/core/enum_tag.h>

#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/data_asked_for.h"
#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/carrier/weight_casts.h"
#include "parallelizers/placement/engine/gradient_number.h"
#include "parallelizers/placement/engine/in_place.h"

namespace oslo {

namespace {

/// A marked tensor's sizes are local: the whole that it is a part of. Any other tensor itself.
at::Tensor with_global_sizes(const at::Tensor& tensor) {
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr) return tensor;
  WeightCasts* const casts = mark->layout->context()->weight_casts.get();
  const at::Tensor read = casts != nullptr ? casts->read(tensor) : tensor;
  Value value = value_of_marked(read, *mark_of(read));
  // Views of a copy of a parameter are to follow it, even where it is whole.
  at::Tensor whole = is_adopted(tensor) ? wrap_placed(std::move(value)) : wrap(std::move(value));
  if (PlacedTensorImpl* impl = placed_impl(whole)) GraphPlace::of(*impl).set_leaf(tensor);
  note_same(tensor, whole);
  return whole;
}

bool has_marked(const c10::IValue& argument) {
  bool found = false;
  for_each_tensor_in(argument,
                     [&](const at::Tensor& tensor) { found |= mark_of(tensor) != nullptr; });
  return found;
}

}  // namespace

void decompose(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  if (op.on_each && op.in_place) {  // nothing but the operator on each of a list, which it writes
    op.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
    return;
  }
  const c10::IValue first = stack[base];
  // Definitions read sizes (_foreach_norm of an infinite order asks for elements). One that gives
  // its target another shape must meet the parameter itself.
  const size_t begin = base + (op.handle.hasTag(at::Tag::inplace_view) ? 1 : 0);
  for (size_t i = begin; i < stack.size(); ++i) {
    if (has_marked(stack[i])) stack[i] = with_tensors_in(stack[i], with_global_sizes);
  }
  op.handle.callBoxedForDispatchKey(op.on_each ? c10::DispatchKey::CompositeExplicitAutograd
                                               : c10::DispatchKey::CompositeImplicitAutograd,
                                    stack);
  if (op.in_place) stack.back() = first;
}

void decompose_or_gather(const OperatorEntry& op, torch::jit::Stack& stack) {
  const bool repeatable = !is_of_libtorch(op) && !op.in_place && !op.writes_out;
  if (!repeatable) return decompose(op, stack);
  torch::jit::Stack again = stack;
  try {
    decompose(op, stack);
  } catch (const c10::Error& error) {
    if (!is_data_asked_for(error)) throw;
    stack = std::move(again);
    Call call(op, stack);
    call.gather("no rule, and its definition reads memory");
    call.finish();
  }
}

void gather_without_rule(Call& call) {
  OSLO_CHECK(!call.op().writes_out, call.name(),
             " writes to an out= tensor, and no operator is known that returns its result "
             "instead; compute it with other operators");
  if (call.op().in_place) {
    gather_in_place(call, "no rule");
  } else {
    call.gather("no rule");
  }
}

}  // namespace oslo
