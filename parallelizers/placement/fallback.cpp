#include "parallelizers/placement/fallback.h"

#include "mpu/error.h"
#include "parallelizers/placement/in_place.h"
#include "parallelizers/placement/mark.h"
#include "parallelizers/placement/placed_tensor.h"

namespace oslo {

void decompose(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  // Definitions read sizes, and a marked tensor's are local: hand them the whole it is a part of.
  const c10::IValue first = stack[base];
  for (size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor tensor = stack[i].toTensor();
    const Mark* mark = mark_of(tensor);
    if (mark == nullptr) continue;
    const at::Tensor whole = wrap(value_of_marked(tensor, *mark));
    if (PlacedTensorImpl* impl = placed_impl(whole)) impl->set_views_leaf();
    stack[i] = whole;
  }
  op.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  if (op.in_place) stack.back() = first;
}

void gather_without_rule(Call& call) {
  OSLO_CHECK(!call.op().writes_out, call.name(),
             " writes to an out= tensor, which cannot be done with a placed tensor; use the "
             "operator that returns its result");
  if (call.op().in_place) {
    gather_in_place(call, "no rule");
  } else {
    call.gather("no rule");
  }
}

}  // namespace oslo
