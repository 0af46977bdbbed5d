#include <unordered_set>
#include <vector>

#include "oslo_cpp/zero/state_sharing.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

std::vector<at::Tensor> stepped_by_default(const ParallelModel& parallel) {
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& parameter : ModelView(parallel.module()).in_use()) {
    if (!parameter.computed) parameters.push_back(parameter.tensor);
  }
  return parameters;
}

std::vector<at::Tensor> registered_without_use(const ParallelModel& parallel) {
  const ModelView model(parallel.module());
  std::unordered_set<const c10::TensorImpl*> used;
  for (const NamedTensor& parameter : model.in_use()) {
    if (!parameter.computed) used.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  std::vector<at::Tensor> unused;
  for (const ParameterView& parameter : model.parameters()) {
    const at::Tensor& registered = parameter.registered;
    if (registered.defined() && used.count(registered.unsafeGetTensorImpl()) == 0) {
      unused.push_back(registered);
    }
  }
  return unused;
}

}  // namespace oslo
