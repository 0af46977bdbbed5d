#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace oslo {

/// The dispatch key of placed tensors and marked parameters. PyTorch reserves `DeferredInit` for
/// use outside its tree and leaves it alone itself; it lies above autograd and autocast, so that
/// rules run the ordinary, differentiable operators on local tensors. Named here only.
constexpr c10::DispatchKey kPlacedKey = c10::DispatchKey::DeferredInit;

/// While alive, operators of this thread do not enter the door.
struct BelowDoor {
  c10::impl::ExcludeDispatchKeyGuard guard{kPlacedKey};
};

}  // namespace oslo
