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

/// The dispatch key of tensors without content (deferred/). PyTorch reserves `Fake` for use outside
/// its tree; it lies below autograd, so that histories, views and versions are LibTorch's own, and
/// above the kernels. Named here only.
constexpr c10::DispatchKey kDeferredKey = c10::DispatchKey::Fake;

/// While alive, operators of this thread are neither recorded nor refused.
struct BelowDeferred {
  c10::impl::ExcludeDispatchKeyGuard guard{kDeferredKey};
};

}  // namespace oslo
