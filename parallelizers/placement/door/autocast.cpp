#include "parallelizers/placement/door/autocast.h"

#include <ATen/autocast_mode.h>

#include <optional>

#include "parallelizers/libtorch/keys.h"

namespace oslo {
namespace {

std::optional<at::DeviceType> device_of(const c10::IValue& argument) {
  const auto ours = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.key_set().has(kPlacedKey);
  };
  if (argument.isTensor() && ours(argument.toTensor())) return argument.toTensor().device().type();
  if (!argument.isTensorList()) return std::nullopt;
  for (const at::Tensor& tensor : argument.toTensorVector()) {
    if (ours(tensor)) return tensor.device().type();
  }
  return std::nullopt;
}

}  // namespace

bool run_under_autocast(const OperatorEntry& op, torch::jit::Stack& stack) {
  for (size_t i = stack.size() - op.arguments; i < stack.size(); ++i) {
    const auto device = device_of(stack[i]);
    if (!device) continue;
    if (!at::autocast::is_autocast_available(*device)) return false;
    if (!at::autocast::is_autocast_enabled(*device)) return false;
    const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(*device);
    if (!op.handle.hasKernelForDispatchKey(key)) return false;
    op.handle.callBoxedForDispatchKey(key, stack);
    return true;
  }
  return false;
}

}  // namespace oslo
