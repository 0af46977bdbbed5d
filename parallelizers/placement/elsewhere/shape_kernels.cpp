#include "parallelizers/placement/elsewhere/shape_kernels.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <utility>
#include <vector>

#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/elsewhere/shape_call.h"

namespace oslo {
namespace {

thread_local ShapeKernels* of_thread = nullptr;

bool meets_shape(c10::ArrayRef<c10::IValue> arguments) {
  bool found = false;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) { found |= tensor.is_meta(); });
  return found;
}

}  // namespace

ShapeKernels::ShapeKernels(ContentProvider* provider)
    : shapes_(std::make_unique<KnownShapes>()), provider_(provider) {
  of_thread = this;
}

ShapeKernels::~ShapeKernels() {
  of_thread = nullptr;
}

ShapeKernels* ShapeKernels::current() {
  return of_thread;
}

bool ShapeKernels::run(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  const auto arguments = c10::ArrayRef<c10::IValue>(stack).slice(base);
  if (!meets_shape(arguments)) return false;
  const c10::IValue first = arguments[0];
  const BelowDeferred below;
  const c10::AutoGradMode no_grad(false);
  std::vector<c10::IValue> results = call_on_shapes(op, arguments.vec(), *shapes_, provider_);
  // The program has the target itself, which may have content.
  if (op.in_place && !results.empty()) results[0] = first;
  torch::jit::drop(stack, op.arguments);
  for (c10::IValue& result : results) stack.push_back(std::move(result));
  return true;
}

}  // namespace oslo
