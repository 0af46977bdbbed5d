#pragma once

#include <ATen/ATen.h>

#include "tests/lazy_device_test/lazy_device.h"

namespace oslo::test {

/// `content` on the device, when the compute stream comes to it.
inline at::Tensor late(const at::Tensor& content) {
  const at::Tensor pinned = at::empty(content.sizes(), content.options().pinned_memory(true));
  pinned.copy_(content);
  return at::empty(content.sizes(), content.options().device(kLazy))
      .copy_(pinned, /*non_blocking=*/true);
}

/// What the compute stream sees, when it comes to it.
inline at::Tensor seen(const at::Tensor& tensor) {
  const at::Tensor host =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  host.zero_();
  host.copy_(tensor, /*non_blocking=*/true);
  finish_current_stream();
  return host;
}

}  // namespace oslo::test
