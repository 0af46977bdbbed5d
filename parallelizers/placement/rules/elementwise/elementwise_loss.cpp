#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/pointwise.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// Losses of one element each, and their reduction: the elements follow the cut, and sum and mean
/// enter the door, which knows the global count.
template <size_t Reduction>
void elementwise_loss(Call& call) {
  auto operands = call.operands();
  const DimensionMap map = pointwise_map(operands);
  const Resolution resolution = resolve(map, operands);
  std::vector<c10::IValue> arguments = call.arguments().vec();
  size_t next = 0;
  for (c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) argument = operands[next++].local;
  }
  arguments[Reduction] = static_cast<int64_t>(at::Reduction::None);
  const at::Tensor each = call.placed(
      resolution.finish(call.call_with(std::move(arguments))[0].toTensor(), map.results[0]));
  const int64_t reduction = call.integer(Reduction);
  call.result_plain(reduction == at::Reduction::None   ? each
                    : reduction == at::Reduction::Mean ? each.mean()
                                                       : each.sum());
}

}  // namespace

void add_elementwise_loss_rules(RuleTable& table) {
  table.add({"aten::smooth_l1_loss", "aten::huber_loss", "aten::soft_margin_loss"},
            elementwise_loss<2>);
  table.add({"aten::binary_cross_entropy"}, elementwise_loss<3>);
  table.add({"aten::binary_cross_entropy_with_logits"}, elementwise_loss<4>);
}

}  // namespace oslo
