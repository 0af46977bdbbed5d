#include "parallelizers/placement/door/part_operators.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/door/initializer_guard.h"
#include "parallelizers/placement/door/part_or_whole.h"
#include "parallelizers/placement/operators/call_observer.h"

namespace oslo {
namespace {

/// A marked result, with the history of the plain one.
at::Tensor marked_with_history(const at::Tensor& plain, const at::Tensor& like, at::Device device) {
  at::Tensor marked = marked_like(plain, like, device);
  if (plain.grad_fn()) {
    torch::autograd::impl::set_gradient_edge(marked, torch::autograd::impl::gradient_edge(plain));
  } else {
    marked.set_requires_grad(plain.requires_grad());
  }
  return marked;
}

/// The device that such an operator on `tensor` is asked to give its result on.
at::Device asked_device(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> others) {
  for (const c10::IValue& argument : others) {
    if (argument.isDevice()) return argument.toDevice();
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device();
  }
  return tensor.device();
}

void run_like(const OperatorEntry& op, torch::jit::Stack& stack, size_t base) {
  const at::Tensor tensor = stack[base].toTensor();
  const Mark& mark = *mark_of(tensor);
  const at::Device device = asked_device(tensor, c10::ArrayRef<c10::IValue>(stack).slice(base + 1));
  const at::Tensor plain = value_of_marked(tensor, mark).local;
  stack[base] = plain;
  if (mark.layout->here()) {
    const BelowDoor below;
    op.handle.callBoxed(&stack);
  } else {
    const auto results =
        mark.layout->context()->residence()->call(op, {stack.begin() + base, stack.end()});
    torch::jit::drop(stack, op.arguments);
    stack.insert(stack.end(), results.begin(), results.end());
  }
  const at::Tensor result = stack.back().toTensor();
  const bool itself = result.is_same(plain) && (mark.layout->here() || device == tensor.device());
  stack.back() = itself ? tensor : marked_with_history(result, tensor, device);
  const bool made = !itself && mark.accumulator && mark.layout->resident();
  if (op.shape_alone && !itself) stop_following(stack.back().toTensor());
  if (made && !result.is_alias_of(plain) && !is_gradient(tensor)) {
    set_made_like(stack.back().toTensor());
  }
}

/// Whether all tensors are parts of the layout of the first marked one. An ordinary tensor of a
/// part's sizes is taken for one, unless the operator writes out=: beside parts of other sizes that
/// is refused, and the ranks' parts have several.
bool lie_alike(const OperatorEntry& op, const torch::jit::Stack& stack, size_t base) {
  const Mark* mark = nullptr;
  for (size_t i = base; i < stack.size(); ++i) {
    if (stack[i].isTensorList() || stack[i].isOptionalTensorList()) return false;
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const Mark* own = mark_of(stack[i].toTensor());
    if (own == nullptr) continue;
    if (mark == nullptr) mark = own;
    if (own != mark && !(own->local_sizes == mark->local_sizes && *own->layout == *mark->layout)) {
      return false;
    }
  }
  for (size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    if (mark_of(tensor) != nullptr) continue;
    // What is written by a part that pipeline stages hold becomes theirs.
    if (i == base && mark->layout->resident()) return false;
    const bool is_out = op.writes_out && op.schema->arguments()[i - base].alias_info() != nullptr;
    if (tensor.dim() == 0 && !is_out) continue;
    if (op.writes_out || tensor.sizes() != c10::IntArrayRef(mark->local_sizes)) return false;
  }
  return true;
}

bool records_beyond_target(const torch::jit::Stack& stack, size_t base) {
  if (!c10::GradMode::is_enabled()) return false;
  for (size_t i = base + 1; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().requires_grad()) return true;
  }
  return false;
}

/// A convolution's weight, or a new tensor like it: gradients are cleared at every step, and must
/// not ask who calls.
bool may_be_initialized(const at::Tensor& marked) {
  if (marked.dim() < 3 || c10::GradMode::is_enabled()) return false;
  const auto& accumulator = mark_of(marked)->accumulator;
  const at::Tensor parameter = accumulator ? accumulated_parameter(*accumulator) : at::Tensor();
  return !parameter.defined() || !marked.is_same(parameter.grad());
}

/// What indexing in C++ ends in where it takes a part for all of a parameter.
bool writes_plain_values(const OperatorEntry& op, const torch::jit::Stack& stack, size_t base) {
  if (!op.in_place || !(op.name == "aten::copy_" || op.name.starts_with("aten::fill_")))
    return false;
  const c10::IValue& values = stack[base + 1];
  return !values.isTensor() || mark_of(values.toTensor()) == nullptr;
}

/// What was made like a parameter is of its gradients once one is written into it: a state of an
/// optimizer, which ranks of other stages have not.
void note_gradients_written(const OperatorEntry& op, const torch::jit::Stack& stack, size_t base) {
  for (size_t i = base; i < stack.size(); ++i) {
    const bool written = op.schema->arguments()[i - base].alias_info() != nullptr;
    if (!written || !stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const Mark* const mark = mark_of(stack[i].toTensor());
    if (mark == nullptr || !mark->made_like) continue;
    for (size_t j = base; j < stack.size(); ++j) {
      if (!stack[j].isTensor() || !stack[j].toTensor().defined()) continue;
      if (is_gradient(stack[j].toTensor())) share_mark(stack[i].toTensor(), stack[j].toTensor());
    }
  }
}

bool run_below(const OperatorEntry& op, torch::jit::Stack& stack) {
  const BelowDoor below;
  op.handle.callBoxed(&stack);
  return true;
}

/// A marked tensor may take another's data (`module.to()`), a plain one may become a marked one (a
/// layer's clone()).
bool change_data(const OperatorEntry& op, torch::jit::Stack& stack, size_t base, bool on_marked) {
  if (on_marked && mark_of(stack[base + 1].toTensor()) == nullptr) {
    fail("set_data of parallel parameter ", mark_of(stack[base].toTensor())->name,
         " with an ordinary tensor of shape ", stack[base + 1].toTensor().sizes(),
         " would lose which part of it this rank holds; use copy_ under torch::NoGradGuard, which "
         "takes this rank's part of a whole tensor");
  }
  return run_below(op, stack);
}

/// `recorded`: the target is marked, and its gradient is recorded.
bool write_parts(const OperatorEntry& op, torch::jit::Stack& stack, size_t base, bool on_marked,
                 bool recorded) {
  // A result of operators on a parameter (a clone) has a place in the graph to keep.
  if (recorded && !stack[base].toTensor().is_leaf()) return false;
  if (records_beyond_target(stack, base)) return false;
  if (stands_for_whole(op, stack, base) || !lie_alike(op, stack, base)) return false;
  // torch::nn::init::dirac_ clears a convolution's weight before it writes its ones.
  if (on_marked && op.clears && may_be_initialized(stack[base].toTensor())) {
    refuse_initializers_of_parts(stack[base].toTensor());
  }
  if (!on_marked) return run_below(op, stack);
  if (writes_plain_values(op, stack, base)) refuse_index_put_of_parts(stack[base].toTensor());
  const at::Tensor target = stack[base].toTensor();
  const Layout& layout = *mark_of(target)->layout;
  if (c10::InferenceMode::is_enabled()) layout.context()->count_write();
  if (op.in_place && !layout.here()) {  // there is nothing to write, but the write counts
    const bool counts = layout.context()->imagined() == nullptr && !target.is_inference();
    if (counts) target.unsafeGetTensorImpl()->bump_version();
    const CallObserver::Scope observed(layout.context()->observer.get(), op,
                                       c10::ArrayRef<c10::IValue>(stack).slice(base));
    torch::jit::drop(stack, op.arguments);
    stack.emplace_back(target);
    return true;
  }
  if (layout.resident()) note_gradients_written(op, stack, base);
  return run_below(op, stack);
}

bool has_sizes_of_a_part(const at::Tensor& tensor, const Layout& layout, c10::IntArrayRef global) {
  if (tensor.dim() != static_cast<int64_t>(global.size())) return false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    const Axes cutting = layout.axes_cutting(d);
    const bool fits = cutting.empty() ? tensor.size(d) == global[d]
                                      : layout[cutting.back()].cut->gives_a_rank(tensor.size(d));
    if (!fits) return false;
  }
  return true;
}

}  // namespace

bool some_rank_runs_on_parts(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.on_parts || !op.writes_pointwise || !arguments[0].isTensor()) return false;
  const at::Tensor& target = arguments[0].toTensor();
  const Mark* mark = target.defined() ? mark_of(target) : nullptr;
  if (mark == nullptr) return false;
  const auto global = mark->layout->global_sizes(target.sizes());
  bool found = false;
  for_each_tensor(arguments.slice(1), [&](const at::Tensor& tensor) {
    found |= !is_placed(tensor) && has_sizes_of_a_part(tensor, *mark->layout, global);
  });
  return found;
}

bool run_on_parts(const OperatorEntry& op, torch::jit::Stack& stack) {
  if (!op.on_parts) return false;
  const size_t base = stack.size() - op.arguments;
  const bool on_marked = stack[base].isTensor() && stack[base].toTensor().defined() &&
                         mark_of(stack[base].toTensor()) != nullptr;
  if (on_marked && op.metadata) return run_below(op, stack);
  if (op.changes_data) return change_data(op, stack, base, on_marked);
  const bool recorded =
      on_marked && c10::GradMode::is_enabled() && stack[base].toTensor().requires_grad();
  if (op.keeps_mark) {
    // `1 - parameter` fills such a tensor and writes to it: what comes out is computed by the
    // forward, and has global sizes as all of that has.
    if (!on_marked || (recorded && op.uninitialized)) return false;
    const ContextPtr context = mark_of(stack[base].toTensor())->layout->context();
    const CallObserver::Scope observed(context->observer.get(), op,
                                       c10::ArrayRef<c10::IValue>(stack).slice(base));
    run_like(op, stack, base);
    return true;
  }
  return op.writes_pointwise && write_parts(op, stack, base, on_marked, recorded);
}

}  // namespace oslo
