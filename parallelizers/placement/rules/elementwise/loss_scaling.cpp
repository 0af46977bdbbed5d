#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <set>

#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// _amp_foreach_non_finite_check_and_unscale_(self[], found, factor), of a gradient scaler: every
/// rank unscales its parts. What one of them finds, all have found: or some would skip the step.
void unscale(Call& call) {
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> gradients = call.argument(0).toTensorVector();
  const std::vector<Value> values = call.values(0);
  std::vector<at::Tensor> parts;
  std::set<int> axes;
  for (size_t i = 0; i < values.size(); ++i) {
    const Value& value = values[i];
    // What is written to a placed tensor is counted there.
    const bool placed = placed_impl(gradients[i]) != nullptr;
    parts.push_back(placed ? value.local.clone() : value.local);
    for (int axis = 0; value.layout && axis < value.layout->axes(); ++axis) {
      if (!(*value.layout)[axis].whole()) axes.insert(axis);
    }
  }
  const at::Tensor found = call.tensor(1);
  at::Tensor here = at::zeros_like(found);
  call.call_with({parts, here, call.argument(2)});
  for (const int axis : axes) {
    here = reduce_extreme(here, call.context()->mesh(), axis, /*largest=*/true);
  }
  found.copy_(at::maximum(found, here));
  for (size_t i = 0; i < values.size(); ++i) {
    if (placed_impl(gradients[i]) == nullptr) continue;
    write_to(gradients[i], {parts[i], values[i].layout}, call.name());
  }
}

}  // namespace

void add_loss_scaling_rules(RuleTable& table) {
  table.add({"aten::_amp_foreach_non_finite_check_and_unscale_"}, unscale);
}

}  // namespace oslo
