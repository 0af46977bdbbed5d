#include "parallelizers/placement/local_zone.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <string_view>

#include "mpu/error.h"
#include "parallelizers/placement/mark.h"

namespace oslo {
namespace {

constexpr std::array<std::string_view, 14> kLike = {
    "aten::detach",    "aten::clone",      "aten::alias",      "aten::zeros_like",
    "aten::ones_like", "aten::empty_like", "aten::full_like",  "aten::to.device",
    "aten::to.dtype",  "aten::to.other",   "aten::contiguous", "aten::to.dtype_layout",
    "aten::_to_copy",  "aten::pin_memory"};

bool keeps_mark(const OperatorEntry& op) {
  for (const std::string_view name : kLike) {
    if (op.name == name) return true;
  }
  return false;
}

/// A marked result, with the history of the plain one.
at::Tensor marked_with_history(const at::Tensor& plain, const at::Tensor& like) {
  at::Tensor marked = marked_like(plain, like);
  if (plain.grad_fn()) {
    torch::autograd::impl::set_gradient_edge(marked, torch::autograd::impl::gradient_edge(plain));
  } else {
    marked.set_requires_grad(plain.requires_grad());
  }
  return marked;
}

void run_like(const OperatorEntry& op, torch::jit::Stack& stack, size_t base) {
  const at::Tensor tensor = stack[base].toTensor();
  const at::Tensor plain = value_of_marked(tensor, *mark_of(tensor)).local;
  stack[base] = plain;
  {
    const BelowDoor below;
    op.handle.callBoxed(&stack);
  }
  const at::Tensor result = stack.back().toTensor();
  stack.back() = result.is_same(plain) ? tensor : marked_with_history(result, tensor);
}

/// Whether all tensors are parts of the layout of the first marked one.
bool lie_alike(const torch::jit::Stack& stack, size_t base) {
  const Mark* mark = nullptr;
  bool shape = false;
  for (size_t i = base; i < stack.size(); ++i) {
    if (stack[i].isTensorList() || stack[i].isOptionalTensorList()) return false;
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const Mark* own = mark_of(stack[i].toTensor());
    if (own == nullptr) continue;
    if (mark == nullptr) shape = stack[i].toTensor().is_meta();
    if (mark == nullptr) mark = own;
    if (own != mark && !(own->local_sizes == mark->local_sizes && *own->layout == *mark->layout)) {
      return false;
    }
  }
  for (size_t i = base; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor& tensor = stack[i].toTensor();
    // In a dry run parameters are shapes, and an ordinary tensor is none yet.
    const bool alike =
        tensor.sizes() == c10::IntArrayRef(mark->local_sizes) && tensor.is_meta() == shape;
    const bool fits = mark_of(tensor) != nullptr || tensor.dim() == 0 || alike;
    if (!fits) return false;
  }
  return true;
}

/// An ordinary tensor of a part's sizes is taken for a part. Where one rank's part is everything,
/// that rank would read the same call otherwise than the rest do: refused on all of them.
void refuse_ambiguous_target(const OperatorEntry& op, const torch::jit::Stack& stack, size_t base) {
  const bool into_plain = op.in_place && mark_of(stack[base].toTensor()) == nullptr;
  for (size_t i = base + 1; into_plain && i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const Mark* mark = mark_of(stack[i].toTensor());
    if (mark == nullptr || !mark->layout->all_on_one_rank()) continue;
    fail(op.name, " into an ordinary tensor from parallel parameter ", mark->name,
         ": one rank holds all of it, so that tensor could stand for a part or for the whole; pass "
         "oslo::local_tensor(p) or oslo::full_tensor(p)");
  }
}

bool records_beyond_target(const torch::jit::Stack& stack, size_t base) {
  if (!c10::GradMode::is_enabled()) return false;
  for (size_t i = base + 1; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().requires_grad()) return true;
  }
  return false;
}

}  // namespace

bool run_in_local_zone(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  const bool on_marked = stack[base].isTensor() && stack[base].toTensor().defined() &&
                         mark_of(stack[base].toTensor()) != nullptr;
  if (on_marked && keeps_mark(op)) {
    run_like(op, stack, base);
    return true;
  }
  const bool changes_data = op.name == "aten::_has_compatible_shallow_copy_type";
  if (on_marked && changes_data && mark_of(stack[base + 1].toTensor()) == nullptr) {
    fail("set_data of parallel parameter ", mark_of(stack[base].toTensor())->name,
         " with an ordinary tensor of shape ", stack[base + 1].toTensor().sizes(),
         " would lose which part of it this rank holds; use copy_ under torch::NoGradGuard, which "
         "takes this rank's part of a whole tensor");
  }
  const bool metadata = op.name == "aten::detach_" || op.name == "aten::requires_grad_" ||
                        op.name == "aten::retain_grad" || op.name == "aten::is_leaf" ||
                        op.name == "aten::_version";
  const bool writes_pointwise =
      (op.pointwise || op.name == "aten::copy_") && (op.in_place || op.writes_out) && !op.random;
  if (writes_pointwise) refuse_ambiguous_target(op, stack, base);
  const bool pointwise =
      writes_pointwise && lie_alike(stack, base) && !records_beyond_target(stack, base);
  // A marked tensor may take another's data (`module.to()`), a plain one may become a marked one
  // (a layer's clone()).
  if (!(metadata && on_marked) && !pointwise && !changes_data) return false;
  if (on_marked && pointwise && c10::InferenceMode::is_enabled()) {
    mark_of(stack[base].toTensor())->layout->mesh()->count_write();
  }
  const BelowDoor below;
  op.handle.callBoxed(&stack);
  return true;
}

}  // namespace oslo
