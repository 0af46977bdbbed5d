#include "oslo_cpp/zero/flat_memory.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

at::Tensor flat_memory(const at::Tensor& tensor) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor plain = plain_values(tensor);
  OSLO_CHECK(
      plain.is_non_overlapping_and_dense(), "a parameter of shape ", plain.sizes(), " and strides ",
      plain.strides(),
      " has gaps or repeats in its memory, so that its elements cannot be shared out; register "
      "a contiguous one");
  return plain.as_strided({plain.numel()}, {1}, plain.storage_offset());
}

at::Tensor flat_like(const at::Tensor& tensor, c10::IntArrayRef strides) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor plain = plain_values(tensor);
  if (plain.strides() == strides) return flat_memory(plain);
  return flat_memory(at::empty_strided(plain.sizes(), strides, plain.options()).copy_(plain));
}

}  // namespace oslo
