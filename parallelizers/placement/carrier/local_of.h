#pragma once

#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

/// What a placed tensor has on this rank, as it is, in whatever graph that stands; any other tensor
/// itself.
inline at::Tensor local_of(const at::Tensor& tensor) {
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  return impl == nullptr ? tensor : impl->unfinished().local;
}

}  // namespace oslo
