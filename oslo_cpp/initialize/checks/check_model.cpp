#include "oslo_cpp/initialize/checks/check_model.h"

#include <torch/nn/module.h>

#include <string>

#include "mpu/base/error.h"
#include "parallelizers/modules/module_traits.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

void check_decided_over(const ModelView& model, const ContextPtr& context) {
  for (const NamedTensor& parameter : model.in_use()) {
    const Mark* mark = mark_of(parameter.tensor);
    const bool by_hand = mark != nullptr && mark->layout->context()->residence() == nullptr &&
                         context->residence() != nullptr;
    OSLO_CHECK(
        !by_hand, "initialize: ", parameter.name,
        " is cut already, and lies on no pipeline stage; give its layer its layer_idx, as in "
        "oslo::nn::LinearOptions(in, out).parallel(\"col\").layer_idx(-1), and initialize "
        "cuts it");
    OSLO_CHECK(mark == nullptr || over_same_ranks(mark->layout->context(), context),
               "initialize: ", parameter.name,
               " is cut already, by an initialize over other tensor ranks; models that share a "
               "layer need the same tensor_parallel_size");
    OSLO_CHECK(mark == nullptr || mark->layout->context()->precision == context->precision,
               "initialize: ", parameter.name,
               " belongs to a model that was initialized with another 'amp', 'master_weights' or "
               "'reduce_dtype'; models that share a layer need the same");
  }
}

void check_takes_stages(const ModelView& model) {
  for (const ModuleView& each : model.modules()) {
    const auto* traits = dynamic_cast<const ModuleTraits*>(each.module.get());
    const std::string reason = traits == nullptr ? "" : traits->no_stages();
    OSLO_CHECK(reason.empty(), "initialize: ", each.path.empty() ? "the model" : each.path, ": ",
               reason);
  }
}

}  // namespace oslo
