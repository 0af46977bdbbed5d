#include "parallelizers/plan/apply/master_weights.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>

#include "mpu/base/error.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/weight_casts.h"

namespace oslo {
namespace {}  // namespace

std::string keep_in_fp32(const ModelView& model, const ContextPtr& context) {
  const c10::AutoGradMode no_grad(false);
  std::map<std::string, int> kept;
  const auto keep = [&](const at::Tensor& parameter) {
    if (!is_half(parameter.scalar_type()) || mark_of(parameter) != nullptr) return;
    const at::ScalarType type = parameter.scalar_type();
    const at::Tensor gradient = parameter.grad();
    parameter.mutable_grad().reset();
    parameter.set_data(parameter.detach().to(at::kFloat));
    if (gradient.defined()) parameter.mutable_grad() = gradient.to(at::kFloat);
    context->weight_casts->set_type(parameter, type);
    ++kept[c10::toString(type)];
  };
  for (const ParameterView& parameter : model.parameters()) {
    keep(parameter.in_use());
    keep(parameter.registered);
  }
  std::string text;
  for (const auto& [type, number] : kept) {
    text += c10::str(text.empty() ? "" : ", ", number, " of ", type);
  }
  if (text.empty()) return text;
  return c10::str(
      "oslo: 'master_weights': parameters of the model are kept in Float from here on (", text,
      "); its forward reads copies in the type that they had");
}

AuthorTypes author_types(const ContextPtr& context) {
  return context->weight_casts ? context->weight_casts->types() : AuthorTypes();
}

void keep_in_fp32(const AuthorTypes& types, const ContextPtr& context) {
  for (const auto& [parameter, type] : types) context->weight_casts->set_type(parameter, type);
}

void give_types_back(const AuthorTypes& types) {
  const c10::AutoGradMode no_grad(false);
  for (const auto& [parameter, type] : types) {
    if (parameter.scalar_type() != type) parameter.set_data(parameter.detach().to(type));
  }
}

void check_kept_in_fp32(const ModelView& model) {
  for (const NamedTensor& parameter : model.in_use()) {
    OSLO_CHECK(!is_half(parameter.tensor.scalar_type()) || !is_deferred(parameter.tensor),
               "initialize: ", parameter.name, " is ", parameter.tensor.scalar_type(),
               " and was constructed under DeferredInit, and 'master_weights' keeps it in fp32: "
               "construct the model in fp32, or set 'master_weights' to false");
  }
}

}  // namespace oslo
