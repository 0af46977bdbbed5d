#include "parallelizers/placement/carrier/arguments.h"

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

MeshPtr mesh_of(c10::ArrayRef<c10::IValue> arguments) {
  MeshPtr mesh;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (mesh) return;
    if (const PlacedTensorImpl* impl = placed_impl(tensor)) {
      mesh = impl->value().layout->mesh();
    } else if (const Mark* mark = mark_of(tensor)) {
      mesh = mark->layout->mesh();
    }
  });
  return mesh;
}

}  // namespace oslo
