#include "parallelizers/modules/unsaved_buffers.h"

#include <set>

namespace oslo {

std::vector<at::Tensor> unsaved_buffers(const ModelView& model) {
  std::set<const c10::TensorImpl*> seen;
  for (const BufferView& buffer : model.buffers()) seen.insert(buffer.tensor.unsafeGetTensorImpl());
  std::vector<at::Tensor> others;
  for (const ModuleView& view : model.modules()) {
    for (const at::Tensor& buffer : view.module->buffers(/*recurse=*/false)) {
      if (buffer.defined() && seen.insert(buffer.unsafeGetTensorImpl()).second) {
        others.push_back(buffer);
      }
    }
  }
  return others;
}

}  // namespace oslo
