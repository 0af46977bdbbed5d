#include <algorithm>
#include <array>

#include "mpu/base/error.h"
#include "parallelizers/data/exchange/all_reduce_gradients.h"
#include "parallelizers/data/exchange/gradient_strategy.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

const GradientStrategy& strategy_for(const std::vector<at::Tensor>& parameters) {
  static const AllReduceGradients all_reduce;
  static const std::array<const GradientStrategy*, 1> known{&all_reduce};
  const at::Tensor* unserved = nullptr;
  for (const GradientStrategy* const each : known) {
    const auto odd = std::find_if(parameters.begin(), parameters.end(), [&](const at::Tensor& one) {
      return !each->serves(layouts_of(one));
    });
    if (odd == parameters.end()) return *each;
    unserved = &*odd;
  }
  const ParameterLayouts layouts = layouts_of(*unserved);
  fail("no strategy leaves the gradient of ", mark_of(*unserved)->name, " as (",
       layouts.gradient->to_string(), "), of a parameter that lies as (",
       layouts.parameter->to_string(), "); lay both alike (oslo::set_layouts)");
}

}  // namespace oslo
