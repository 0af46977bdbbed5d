#include "oslo_cpp/model/initialized_tag.h"

#include <algorithm>
#include <utility>

#include "parallelizers/libtorch/tensor_tag.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

struct InitializedTag final : TagPart {
  InitializedTag(const at::Tensor& parameter, std::string name)
      : parameter(parameter.unsafeGetTensorImpl()), name(std::move(name)) {}

  const c10::TensorImpl* const parameter;  ///< copies of it carry the tag too
  const std::string name;
};

const InitializedTag* tag_of(const at::Tensor& parameter) {
  return static_cast<const InitializedTag*>(
      tag_part(*parameter.unsafeGetTensorImpl(), TagKind::initialized));
}

}  // namespace

bool is_initialized(const at::Tensor& parameter) {
  if (mark_of(parameter) != nullptr || is_computed(parameter)) return true;
  return tag_of(parameter) != nullptr;
}

std::string initialized_name(const at::Tensor& parameter) {
  if (const Mark* mark = mark_of(parameter)) return mark->name;
  const InitializedTag* const tag = tag_of(parameter);
  return tag != nullptr && tag->parameter == parameter.unsafeGetTensorImpl() ? tag->name
                                                                             : std::string();
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
    set_tag_part(*tensor.unsafeGetTensorImpl(), TagKind::initialized,
                 c10::make_intrusive<InitializedTag>(tensor, parameter.path));
  }
}

void clear_initialized(const ModelView& model) {
  for (const ParameterView& parameter : model.parameters()) {
    for (const at::Tensor& tensor : {parameter.registered, parameter.in_use()}) {
      if (!tensor.defined() || mark_of(tensor) != nullptr || !is_initialized(tensor)) continue;
      clear_tag(*tensor.unsafeGetTensorImpl());
    }
  }
}

}  // namespace oslo
