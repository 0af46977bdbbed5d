#include "parallelizers/placement/carrier/arguments.h"

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

ContextPtr context_of(c10::ArrayRef<c10::IValue> arguments) {
  ContextPtr context;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (context) return;
    if (const PlacedTensorImpl* impl = placed_impl(tensor)) {
      context = impl->layout()->context();
    } else if (const Mark* mark = mark_of(tensor)) {
      context = mark->layout->context();
    }
  });
  return context;
}

}  // namespace oslo
