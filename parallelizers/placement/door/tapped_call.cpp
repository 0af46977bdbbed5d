#include "parallelizers/placement/door/tapped_call.h"

#include <ATen/autocast_mode.h>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/door/autocast.h"
#include "parallelizers/placement/door/door.h"

namespace oslo {
namespace {

bool meets_placed(const OperatorEntry& op, const torch::jit::Stack& stack) {
  bool placed = false;
  for (size_t i = stack.size() - op.arguments; i < stack.size(); ++i) {
    for_each_tensor_in(
        stack[i], [&](const at::Tensor& tensor) { placed |= tensor.key_set().has(kPlacedKey); });
  }
  return placed;
}

/// LibTorch takes an operator's definition, also before a kernel for autograd in general, unless
/// somebody registered one for this backend or its autograd.
bool is_run_by_definition(const OperatorEntry& op, c10::DispatchKeySet keys) {
  const auto has = [&](c10::DispatchKey key) { return op.handle.hasKernelForDispatchKey(key); };
  if (!op.composite || !has(c10::DispatchKey::CompositeImplicitAutograd)) return false;
  const c10::BackendComponent backend = keys.highestBackendKey();
  const auto of = [&](c10::DispatchKey functionality) {
    return backend != c10::BackendComponent::InvalidBit &&
           has(c10::toRuntimePerBackendFunctionalityKey(functionality, backend));
  };
  return !of(c10::DispatchKey::AutogradFunctionality) && !of(c10::DispatchKey::Dense);
}

}  // namespace

bool run_by_definition(const OperatorEntry& op, c10::DispatchKeySet keys,
                       torch::jit::Stack& stack) {
  if (meets_placed(op, stack)) return op.autocasts && run_under_autocast(op, stack);
  for (const auto device : {at::kCPU, at::kCUDA}) {
    const auto autocast = at::autocast::get_autocast_dispatch_key_from_device_type(device);
    if (!keys.has(autocast) || !op.handle.hasKernelForDispatchKey(autocast)) continue;
    op.handle.callBoxedForDispatchKey(autocast, stack);
    return true;
  }
  if (!is_run_by_definition(op, keys)) return false;
  op.handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  return true;
}

void run_lifted(const OperatorEntry& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const OperatorTap::Lifted lifted;
  if (meets_placed(op, stack)) return door(op, stack);
  const auto below = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPlacedKey);
  op.handle.redispatchBoxed(keys & below, &stack);
}

}  // namespace oslo
