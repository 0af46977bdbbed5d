#include "checkpoint/resume/stepped_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/index/checkpoint_index.h"
#include "mpu/base/error.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/value.h"

namespace oslo {

std::vector<std::vector<SteppedParameter>> stepped_parameters(
    const torch::optim::Optimizer& optimizer, const ModelView& model, const ModelState& state,
    ForeignTensors foreign) {
  std::unordered_map<const c10::TensorImpl*, const ModelState::Tensor*> known;
  for (const ModelState::Tensor& tensor : state.tensors) {
    known.emplace(tensor.local.unsafeGetTensorImpl(), &tensor);
  }
  std::unordered_set<const c10::TensorImpl*> unused;
  for (const ParameterView& parameter : model.parameters()) {
    if (parameter.registered.defined()) unused.insert(parameter.registered.unsafeGetTensorImpl());
  }
  std::vector<std::vector<SteppedParameter>> groups;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    std::vector<SteppedParameter>& stepped = groups.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      if (found != known.end()) {
        stepped.push_back({parameter, found->second});
        continue;
      }
      const bool left_out = foreign == ForeignTensors::left_out;
      OSLO_CHECK(left_out || unused.count(parameter.unsafeGetTensorImpl()) > 0, "group ",
                 groups.size() - 1, " of the optimizer has a tensor of shape ", parameter.sizes(),
                 " that is no parameter of the model, and a checkpoint of the model would lack it; "
                 "register it in the model");
    }
  }
  return groups;
}

bool is_type_of_state(c10::ScalarType type, const at::Tensor& parameter) {
  return type == parameter.scalar_type() || type == gradient_type(parameter);
}

at::Tensor part_of_state(const at::Tensor& tensor, const ModelState::Tensor& parameter,
                         const std::string& what) {
  const c10::AutoGradMode no_grad(false);
  const LayoutPtr lies = layout(tensor);
  const bool cut = lies && !lies->whole();
  const LayoutPtr& wanted = parameter.state_layout;
  OSLO_CHECK(!cut || cuts_of(lies) == cuts_of(wanted), what, " is cut as [",
             to_string(cuts_of(lies)), "], its parameter as [", to_string(cuts_of(wanted)), "]");
  at::Tensor part =
      mark_of(tensor) != nullptr ? unmarked_alias(tensor) : local_tensor(tensor).detach();
  const at::Tensor like = blank_in(parameter.local, layouts_of(parameter.local).state);
  if (!cut && wanted && part.sizes() == c10::IntArrayRef(parameter.shape)) {
    part = local_part(part, *wanted);
  }
  const bool has_type = is_type_of_state(part.scalar_type(), parameter.local);
  OSLO_CHECK(part.sizes() == like.sizes() && has_type, what, " is ", part.scalar_type(), " ",
             part.sizes(), ", its parameter ", like.scalar_type(), " ", like.sizes(),
             " on this rank; convert the model before the optimizer's first step");
  return part;
}

at::Tensor state_like(const at::Tensor& part, const at::Tensor& parameter) {
  const c10::AutoGradMode no_grad(false);
  const BelowDoor below;
  const LayoutPtr lies = layouts_of(parameter).state;
  const at::Tensor like = blank_in(parameter, lies);
  const bool own = part.storage().use_count() == 1 && part.storage().nbytes() == part.nbytes();
  const bool fits = own && part.device() == like.device() && part.strides() == like.strides();
  const auto type = at::TensorOptions(part.dtype());
  const at::Tensor values = fits ? part : at::empty_like(like, type).copy_(part);
  return lies ? marked_state(values, parameter) : values;
}

}  // namespace oslo
