#include "tests/lazy_device_test/late_operators.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "tests/lazy_device_test/lazy_device.h"

namespace oslo::test {
namespace {

thread_local std::function<void()> afterwards;

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device() != kLazy) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

at::Tensor on_device(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor there =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(kLazy));
  on_host(there).copy_(tensor);
  return there;
}

/// The argument that an operator writes and returns.
const c10::IValue& returned(const c10::FunctionSchema& schema, const c10::AliasInfo& alias,
                            const std::vector<c10::IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const of = schema.arguments()[i].alias_info();
    if (of != nullptr && of->isWrite() && of->beforeSets() == alias.beforeSets()) {
      return arguments[i];
    }
  }
  fail(schema.operator_name().name, " is a view, which the simulated device does not have");
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  finish_current_stream();
  const c10::FunctionSchema& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  std::vector<c10::IValue> arguments(stack->begin() + static_cast<std::ptrdiff_t>(first),
                                     stack->end());
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& argument = (*stack)[i];
    argument = argument.isDevice() ? c10::IValue(c10::Device(c10::kCPU))
                                   : with_tensors_in(argument, on_host);
  }
  op.callBoxed(stack);
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const c10::AliasInfo* const alias = schema.returns()[i].alias_info();
    c10::IValue& result = (*stack)[first + i];
    result =
        alias != nullptr ? returned(schema, *alias, arguments) : with_tensors_in(result, on_device);
  }
  if (afterwards) afterwards();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>());
}

}  // namespace

void after_operators(std::function<void()> then) {
  afterwards = std::move(then);
}

}  // namespace oslo::test
