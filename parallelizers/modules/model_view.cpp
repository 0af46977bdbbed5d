#include "parallelizers/modules/model_view.h"

#include <torch/nn/module.h>

#include <unordered_set>

namespace oslo {
namespace {

struct ComputedTag final : c10::BackendMeta {
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    return self;
  }
};

}  // namespace

const at::Tensor& ParameterSlot::in_use() const {
  return member != nullptr && member->defined() && member->is_leaf() ? *member : registered;
}

bool ParameterSlot::computed() const {
  return is_computed(in_use()) || (member != nullptr && member->defined() && !member->is_leaf());
}

std::vector<NamedTensor> ModelView::in_use() const {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<NamedTensor> found;
  for (const ParameterView& parameter : parameters_) {
    const at::Tensor& tensor = parameter.in_use();
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    found.push_back({parameter.path, tensor, parameter.computed()});
  }
  return found;
}

void set_computed(const at::Tensor& registered) {
  registered.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<ComputedTag>());
}

bool is_computed(const at::Tensor& registered) {
  const auto* meta = registered.unsafeGetTensorImpl()->get_backend_meta();
  return dynamic_cast<const ComputedTag*>(meta) != nullptr;
}

}  // namespace oslo
