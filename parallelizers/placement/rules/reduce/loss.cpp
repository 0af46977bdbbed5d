#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>

#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/reduce/vocabulary_loss.h"

namespace oslo {
namespace {

struct Settings {
  int64_t reduction;
  int64_t ignore_index;
  double smoothing;
  int64_t classes;
};

/// How many targets count, over all axes that cut the rows.
at::Tensor counted_rows(const at::Tensor& target, const Settings& settings,
                        const Resolution& resolution) {
  at::Tensor count = target.ne(settings.ignore_index).sum();
  for (const int axis : resolution.axes_beside("V")) {
    count = resolution.mesh().axis(axis)->all_reduce(count.clone());
  }
  return count;
}

/// With class probabilities as targets, by its definition.
void cross_entropy_of_probabilities(Call& call, int64_t class_dim, int64_t classes) {
  const Value logits = call.value(0);
  const double smoothing = call.number(5);
  at::Tensor target = call.tensor(1);
  if (smoothing > 0) target = target * (1 - smoothing) + smoothing / static_cast<double>(classes);
  at::Tensor terms = at::log_softmax(call.tensor(0), class_dim) * target;
  if (const Value weight = call.value(2); weight.defined()) {
    std::vector<int64_t> shape(logits.dim(), 1);
    shape[class_dim] = classes;
    terms = terms * call.tensor(2).view(shape);
  }
  const int64_t reduction = call.integer(3);
  double rows = 1;
  for (const int64_t size : logits.sizes()) rows *= static_cast<double>(size);
  rows /= static_cast<double>(classes);
  call.result_plain(reduction == at::Reduction::None   ? -terms.sum(class_dim)
                    : reduction == at::Reduction::Mean ? -terms.sum() / rows
                                                       : -terms.sum());
}

/// cross_entropy_loss(self, target, weight, reduction, ignore_index, label_smoothing).
void cross_entropy(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  const int64_t dims = operands[0].dim(), class_dim = dims == 1 ? 0 : 1;
  const bool indices = operands[1].dim() == dims - 1 && !operands[1].local.is_floating_point();
  operands[1] = with_wide_classes(std::move(operands[1]));
  if (call.value(2).defined() && indices && call.number(5) == 0) {
    // By its definition; the parts enter the door one by one.
    call.result_plain(at::nll_loss_nd(at::log_softmax(call.tensor(0), class_dim), call.tensor(1),
                                      call.tensor(2), call.integer(3), call.integer(4)));
    return;
  }
  if (operands[1].sizes() == operands[0].sizes() && operands[1].local.is_floating_point()) {
    return cross_entropy_of_probabilities(call, class_dim, operands[0].size(class_dim));
  }
  if (call.value(2).defined() || !indices) return call.gather("smoothed class weights");
  const Settings settings{call.integer(3), call.integer(4), call.number(5),
                          operands[0].size(class_dim)};
  std::string rows = letters(dims - 1), own = rows;
  own.insert(class_dim, "V");
  const bool none = settings.reduction == at::Reduction::None;
  // Classes in blocks or cut by several axes are gathered; else what is cheaper stays cut.
  DimensionMap map{{own, rows}, {""}};
  if (!operands[0].in_one_stretch(class_dim)) map.whole = "V";
  const Resolution resolution = resolve(map, operands);
  const int vocabulary_axis = resolution.axis_keeping('V');
  const at::Tensor& logits = operands[0].local;
  const at::Tensor& target = operands[1].local;
  at::Tensor loss;
  if (vocabulary_axis >= 0) {
    check_indices(target, settings.classes, "cross_entropy_loss", settings.ignore_index);
    const bool half = at::isReducedFloatingType(logits.scalar_type());
    const auto& group = resolution.mesh().axis(vocabulary_axis);
    const Cut& cut = *resolution.axis(vocabulary_axis).cut;
    loss = vocabulary_loss(half ? logits.to(at::kFloat) : logits, target,
                           {group, class_dim, first_index(cut, group->rank()), settings.classes,
                            settings.smoothing})
               .masked_fill(target.eq(settings.ignore_index), 0);
  } else {
    loss = at::cross_entropy_loss(logits, target, {}, at::Reduction::None, settings.ignore_index,
                                  settings.smoothing);
  }
  // Sums over many rows leave the range of half precision, and lose the last ones.
  if (!none) loss = loss.sum(at::toOpMathType(loss.scalar_type()));
  if (settings.reduction == at::Reduction::Mean) {
    loss = loss / counted_rows(target, settings, resolution);
  }
  // The classes are reduced already; only axes that cut the rows hold partial sums.
  if (!none) {
    for (const int axis : resolution.axes_beside("V")) {
      loss = reduce_axis(loss, resolution.mesh(), axis);
    }
  }
  call.result({loss.to(logits.scalar_type()), resolution.layout_of(none ? rows : "")});
}

/// mse_loss(self, target, reduction), by its definition: the parts enter the door one by one.
void mean_squared_error(Call& call) {
  const at::Tensor squares = (call.tensor(0) - call.tensor(1)).square();
  const int64_t reduction = call.integer(2);
  call.result_plain(reduction == at::Reduction::None   ? squares
                    : reduction == at::Reduction::Mean ? squares.mean()
                                                       : squares.sum());
}

}  // namespace

void add_loss_rules(RuleTable& table) {
  table.add({"aten::cross_entropy_loss"}, cross_entropy);
  table.add({"aten::mse_loss"}, mean_squared_error);
}

}  // namespace oslo
