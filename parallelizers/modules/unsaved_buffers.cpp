#include "parallelizers/modules/unsaved_buffers.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <torch/nn/module.h>

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

void put_back(const at::Tensor& memory, const at::Tensor& content) {
  if (at::has_internal_overlap(memory) != at::MemOverlap::Yes) memory.copy_(content);
}

}  // namespace oslo
