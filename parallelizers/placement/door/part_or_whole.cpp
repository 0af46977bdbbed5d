#include "parallelizers/placement/door/part_or_whole.h"

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// What ordinary tensors are, by the sizes of parts and wholes; bits.
enum Seen : int64_t { kOnlyParts = 1, kOnlyWholes = 2, kNeither = 4 };

/// The mark, beside an ordinary target, of what some rank holds all of; null where there is none.
const Mark* ambiguous_mark(const OperatorEntry& op, const torch::jit::Stack& stack, size_t base) {
  if (!op.in_place || mark_of(stack[base].toTensor()) != nullptr) return nullptr;
  for (size_t i = base + 1; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const Mark* mark = mark_of(stack[i].toTensor());
    // What is written by a part that pipeline stages hold becomes theirs, and whole.
    if (mark == nullptr || mark->layout->resident()) continue;
    if (mark->layout->all_on_one_rank()) return mark;
  }
  return nullptr;
}

/// What this rank can tell: nothing where its part is everything.
int64_t seen_here(const torch::jit::Stack& stack, size_t base, const Mark& mark) {
  const auto global = mark.layout->global_sizes(mark.local_sizes);
  int64_t seen = 0;
  for (size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    if (mark_of(tensor) != nullptr || (i > base && tensor.dim() == 0)) continue;
    const bool part = tensor.sizes() == c10::IntArrayRef(mark.local_sizes);
    const bool whole = tensor.sizes() == c10::IntArrayRef(global);
    if (!part || !whole) seen |= part ? kOnlyParts : whole ? kOnlyWholes : kNeither;
  }
  return seen;
}

}  // namespace

bool stands_for_whole(const OperatorEntry& op, const torch::jit::Stack& stack, size_t base) {
  const Mark* const mark = ambiguous_mark(op, stack, base);
  if (mark == nullptr) return false;
  const RuleScope scope(op.name.c_str());
  const Layout& layout = *mark->layout;
  int64_t seen = seen_here(stack, base, *mark);
  for (int axis = 0; axis < layout.axes(); ++axis) {
    if (layout[axis].whole()) continue;
    for (const int64_t other : layout.group(axis)->exchange(seen)) seen |= other;
  }
  OSLO_CHECK((seen & kOnlyParts) == 0 || seen == kOnlyParts, op.name,
             " into an ordinary tensor from parallel parameter ", mark->name,
             ": some of its ordinary tensors have the sizes of a rank's part, others do not; pass "
             "oslo::local_tensor(p), or oslo::full_tensor(p), everywhere");
  return seen != kOnlyParts;
}

}  // namespace oslo
