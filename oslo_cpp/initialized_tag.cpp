#include "oslo_cpp/initialized_tag.h"

#include "parallelizers/placement/mark.h"

namespace oslo {
namespace {

struct InitializedTag final : c10::BackendMeta {
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    return self;
  }
};

}  // namespace

bool is_initialized(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (mark_of(parameter) != nullptr) return true;
    if (dynamic_cast<InitializedTag*>(parameter.unsafeGetTensorImpl()->get_backend_meta())) {
      return true;
    }
  }
  return false;
}

void set_initialized(torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (mark_of(parameter) != nullptr) continue;
    parameter.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<InitializedTag>());
    return;
  }
}

}  // namespace oslo
