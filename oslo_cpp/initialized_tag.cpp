#include "oslo_cpp/initialized_tag.h"

#include <algorithm>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

struct InitializedTag final : c10::BackendMeta {
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    return self;
  }
};

}  // namespace

bool is_initialized(const at::Tensor& parameter) {
  if (mark_of(parameter) != nullptr || is_computed(parameter)) return true;
  return dynamic_cast<InitializedTag*>(parameter.unsafeGetTensorImpl()->get_backend_meta()) !=
         nullptr;
}

bool is_initialized(const ModelView& model) {
  const auto& parameters = model.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const ParameterView& parameter) {
    return is_initialized(parameter.registered);
  });
}

bool is_all_initialized(const ModelView& model) {
  const auto& parameters = model.parameters();
  return !parameters.empty() &&
         std::all_of(parameters.begin(), parameters.end(), [](const ParameterView& parameter) {
           return is_initialized(parameter.registered);
         });
}

void set_initialized(const ModelView& model) {
  for (const ParameterView& parameter : model.parameters()) {
    const at::Tensor& tensor = parameter.registered;
    if (is_initialized(tensor)) continue;
    tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<InitializedTag>());
  }
}

void clear_initialized(const ModelView& model) {
  for (const ParameterView& parameter : model.parameters()) {
    for (const at::Tensor& tensor : {parameter.registered, parameter.in_use()}) {
      if (!tensor.defined() || mark_of(tensor) != nullptr || !is_initialized(tensor)) continue;
      tensor.unsafeGetTensorImpl()->set_backend_meta(nullptr);
    }
  }
}

}  // namespace oslo
