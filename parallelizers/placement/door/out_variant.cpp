#include "parallelizers/placement/door/out_variant.h"

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <optional>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {
namespace {

bool is_out(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Whether `other` takes what `schema` does but for its out= tensors, and returns these instead.
bool returns_what_is_written(const c10::FunctionSchema& other, const c10::FunctionSchema& schema) {
  std::vector<const c10::Argument*> taken;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!is_out(argument)) taken.push_back(&argument);
  }
  const size_t written = schema.arguments().size() - taken.size();
  if (other.arguments().size() != taken.size() || other.returns().size() != written) return false;
  for (size_t i = 0; i < taken.size(); ++i) {
    const c10::Argument& own = other.arguments()[i];
    if (own.alias_info() != nullptr || own.name() != taken[i]->name()) return false;
    if (*own.type() != *taken[i]->type()) return false;
  }
  for (const c10::Argument& result : other.returns()) {
    if (*result.type() != *c10::TensorType::get()) return false;
  }
  return true;
}

std::optional<c10::OperatorHandle> returning(const OperatorEntry& op) {
  const auto name = c10::Symbol::fromQualString(op.schema->name());
  for (const auto& each : torch::jit::getAllOperatorsFor(name)) {
    if (!returns_what_is_written(each->schema(), *op.schema)) continue;
    return c10::Dispatcher::singleton().findSchema(each->schema().operator_name());
  }
  return std::nullopt;
}

c10::DimVector sizes_of(const at::Tensor& out) {
  const Mark* const mark = placed_impl(out) != nullptr ? nullptr : mark_of(out);
  if (mark == nullptr) return c10::DimVector(out.sizes());
  const auto sizes = mark->layout->global_sizes(out.sizes());
  return c10::DimVector(sizes.begin(), sizes.end());
}

void write(const OperatorEntry& op, const at::Tensor& result, const at::Tensor& out) {
  OSLO_CHECK(!result.requires_grad() && !(out.requires_grad() && c10::GradMode::is_enabled()),
             op.name,
             " writes to an out= tensor, and one of its arguments requires a gradient, which out= "
             "forms do not record; call it under torch::NoGradGuard, or use the operator that "
             "returns its result");
  OSLO_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), op.name, ": result type ",
             result.scalar_type(), " can't be cast to the desired output type ", out.scalar_type());
  if (sizes_of(out) != result.sizes()) {
    const bool ordinary = placed_impl(out) == nullptr && mark_of(out) == nullptr;
    OSLO_CHECK(ordinary, op.name, " writes a result of shape ", result.sizes(),
               " to an out= tensor of shape ", sizes_of(out),
               ", which is a value or parameter of a parallel model and keeps its sizes; use the "
               "operator that returns its result");
    out.resize_(result.sizes());
  }
  out.copy_(result);
}

}  // namespace

bool run_out_variant(const OperatorEntry& op, torch::jit::Stack& stack) {
  const std::optional<c10::OperatorHandle> other = returning(op);
  if (!other) return false;
  const size_t base = stack.size() - op.arguments;
  torch::jit::Stack taken;
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < op.arguments; ++i) {
    if (is_out(op.schema->arguments()[i])) {
      outs.push_back(stack[base + i].toTensor());
    } else {
      taken.push_back(stack[base + i]);
    }
  }
  other->callBoxed(&taken);
  for (size_t i = 0; i < outs.size(); ++i) write(op, taken[i].toTensor(), outs[i]);
  torch::jit::drop(stack, op.arguments);
  for (at::Tensor& out : outs) stack.emplace_back(std::move(out));
  return true;
}

}  // namespace oslo
