#include "oslo_cpp/step/stray_parameter.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <string>

#include "mpu/base/error.h"
#include "oslo_cpp/model/initialized_tag.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/graph/accumulators.h"

namespace oslo {

void check_learns_only(const at::Tensor& loss, const StrayGradients::Parameters& own) {
  const auto check = [&](const at::Tensor& parameter, const torch::autograd::Node& node) {
    if (own.count(parameter.unsafeGetTensorImpl()) > 0) return;
    const std::string name = initialized_name(parameter);
    if (name.empty() || !node.post_hooks().empty()) return;
    fail("a parameter of another model, ", name, " ", parameter.sizes(),
         ", would get a gradient in this step, and a PipelineSchedule averages those of its own "
         "models",
         kNameAllModels);
  };
  for_each_accumulator(local_tensor(loss), check);
}

}  // namespace oslo
