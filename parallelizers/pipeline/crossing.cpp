#include "parallelizers/pipeline/crossing.h"

#include <ATen/ATen.h>

namespace oslo {

uint64_t writes_to(const at::Tensor& tensor, const Mesh& mesh) {
  const auto& counter = tensor.unsafeGetTensorImpl()->version_counter();
  return counter.enabled() ? counter.current_version() : mesh.uncounted_writes();
}

at::Tensor place_for(const Value& value, int to) {
  const Mesh& mesh = *value.layout->mesh();
  const at::Device device = mesh.holds(StageSet::of(to)) ? mesh.device : at::Device(at::kMeta);
  return at::empty(value.local.sizes(), at::TensorOptions(value.local.dtype()).device(device));
}

}  // namespace oslo
