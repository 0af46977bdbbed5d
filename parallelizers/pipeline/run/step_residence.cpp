#include "parallelizers/pipeline/run/step_residence.h"

#include "mpu/base/error.h"

namespace oslo {

void StepResidence::check_carried(c10::function_ref<std::string()> needs) const {
  fail(needs(),
       " in a backward pass (of a torch::autograd::Function, or in a hook), to which nothing is "
       "carried; compute with it in the forward");
}

}  // namespace oslo
