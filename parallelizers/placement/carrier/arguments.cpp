#include "parallelizers/placement/carrier/arguments.h"

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/moving/other_mesh.h"

namespace oslo {

ContextPtr context_of(c10::ArrayRef<c10::IValue> arguments) {
  ContextPtr context;
  const auto take = [&](const ContextPtr& own) {
    if (!context || (own != context && own->mesh().axes() > context->mesh().axes() &&
                     lies_within(*context, *own))) {
      context = own;
    }
  };
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (const PlacedTensorImpl* impl = placed_impl(tensor)) {
      take(impl->layout()->context());
    } else if (const Mark* mark = mark_of(tensor)) {
      take(mark->layout->context());
    }
  });
  return context;
}

}  // namespace oslo
