#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <c10/core/GradMode.h>

#include <set>

#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/index/indexing.h"

namespace oslo {
namespace {

constexpr char kClass = 'V';

/// One of each a target; 0 where it is ignored or another rank holds its class.
struct Picked {
  at::Tensor loss;
  /// What the target counts in a mean. Without class weights every rank knows.
  at::Tensor weight;
};

/// Where the targets' classes are in this rank's part; 0 where there is nothing.
struct Places {
  at::Tensor place, nothing;
};

Places places(const at::Tensor& target, int64_t ignored, const Cut* cut, int rank) {
  at::Tensor nothing = target.eq(ignored), place = target;
  if (cut != nullptr) {
    const OwnPositions own = own_positions(target, *cut, rank);
    nothing = at::logical_or(nothing, own.elsewhere);
    place = own.local;
  }
  return {place.masked_fill(nothing, 0), nothing};
}

/// From this rank's classes, or from all of them (`cut` null).
Picked pick(at::Tensor log_probabilities, at::Tensor class_weights, const at::Tensor& target,
            int64_t class_dim, int64_t ignored, const Cut* cut, int rank) {
  const at::Tensor left_out = target.eq(ignored);
  const auto [place, nothing] = places(target, ignored, cut, rank);
  if (cut != nullptr) {
    log_probabilities = never_empty(log_probabilities, class_dim);
    if (class_weights.defined()) class_weights = never_empty(class_weights, 0);
  }
  const at::Tensor found =
      log_probabilities.gather(class_dim, place.unsqueeze(class_dim)).squeeze(class_dim);
  // Filled before it is multiplied: infinity that nobody asked for would make not-a-number.
  // What is added up in half precision is not rounded before.
  const at::Tensor loss = -found.masked_fill(nothing, 0).to(at::toOpMathType(found.scalar_type()));
  if (!class_weights.defined()) return {loss, at::ones_like(loss).masked_fill(left_out, 0)};
  const at::Tensor weight =
      class_weights.gather(0, place.flatten()).view(place.sizes()).masked_fill(nothing, 0);
  return {loss * weight.to(loss.scalar_type()), weight};
}

/// On how many axes some operand is cut by class.
int axes_cutting_classes(c10::ArrayRef<Value> operands, int64_t class_dim) {
  std::set<int> axes;
  for (const int axis : operands[0].axes_cutting(class_dim)) axes.insert(axis);
  if (operands.size() > 2) {
    for (const int axis : operands[2].axes_cutting(0)) axes.insert(axis);
  }
  return static_cast<int>(axes.size());
}

/// Whether autocast, which would meet what the operator is defined by, runs that in fp32.
bool is_widened(const Call& call) {
  return call.op().composite && at::isReducedFloatingType(call.value(0).local.scalar_type()) &&
         (at::autocast::is_autocast_enabled(at::kCPU) ||
          at::autocast::is_autocast_enabled(at::kCUDA));
}

/// nll_loss(self, target, weight, reduction, ignore_index) with the classes in dimension 1 (0 for a
/// single row): classes that are cut are looked up by the rank that holds them and summed.
void nll_loss(Call& call) {
  c10::SmallVector<Value, 3> operands{call.value(0), call.value(1)};
  operands[1] = with_wide_classes(std::move(operands[1]));
  if (is_widened(call)) operands[0].local = operands[0].local.to(at::kFloat);
  const int64_t dims = operands[0].dim(), class_dim = dims == 1 ? 0 : 1;
  if (operands[1].dim() != dims - 1) return call.gather("targets of another shape");
  if (const Value weight = call.value(2); weight.defined())
    operands.push_back({weight.local.detach(), weight.layout});
  const int64_t reduction = call.integer(3), ignored = call.integer(4);
  const int64_t classes = operands[0].size(class_dim);
  const std::string rows = letters(dims - 1), result = reduction == at::Reduction::None ? rows : "";
  std::string own = rows;
  own.insert(class_dim, 1, kClass);
  DimensionMap map{{own, rows}, {result}};
  const bool weighted = operands.size() > 2;
  if (weighted) map.operands.push_back(std::string(1, kClass));
  if (axes_cutting_classes(operands, class_dim) > 1) map.whole = kClass;
  const Resolution resolution = resolve(map, operands);
  const at::Tensor& target = operands[1].local;
  const int axis = resolution.axis_keeping(kClass);
  check_indices(target, classes, "nll_loss", ignored);
  Picked picked = pick(operands[0].local, weighted ? operands[2].local : at::Tensor(), target,
                       class_dim, ignored, axis < 0 ? nullptr : resolution.axis(axis).cut.get(),
                       axis < 0 ? 0 : resolution.mesh().axis(axis)->rank());
  // nll_loss_forward says the total weight, too; of each row's loss by itself there is none.
  const bool tells_total = call.op().handle.schema().returns().size() == 2;
  if (reduction == at::Reduction::None && (!tells_total || dims > 1)) {
    call.result(resolution.finish(picked.loss.to(operands[0].local.scalar_type()), rows));
    if (tells_total) call.result_plain(at::zeros({}, picked.weight.options()));
    return;
  }
  // Sums over many rows keep their precision, as on one device.
  const at::ScalarType type = operands[0].local.scalar_type();
  const bool half = at::isReducedFloatingType(type);
  const at::ScalarType wide = half ? at::kFloat : type;
  at::Tensor loss = picked.loss.sum(wide);
  at::Tensor total;
  if (reduction == at::Reduction::Mean || tells_total) {
    total = picked.weight.sum(wide);
    const Axes spread = resolution.axes_beside(weighted ? "" : std::string_view(&kClass, 1));
    for (const int other : spread) total = resolution.mesh().axis(other)->all_reduce(total.clone());
  }
  if (reduction == at::Reduction::Mean) loss = loss / total;
  Value sum = resolution.finish(loss, "");
  sum.local = sum.local.to(type);
  call.result(std::move(sum));
  if (tells_total) call.result_plain(total.to(type));
}

/// nll_loss_backward(gradient, self, target, weight, reduction, ignore_index, total_weight): each
/// rank writes where it holds the target's class.
void nll_loss_backward(Call& call) {
  c10::SmallVector<Value, 4> operands{call.value(0), call.value(1), call.value(2)};
  operands[2] = with_wide_classes(std::move(operands[2]));
  const int64_t dims = operands[1].dim(), class_dim = dims == 1 ? 0 : 1;
  if (operands[2].dim() != dims - 1) return call.gather("targets of another shape");
  if (const Value weight = call.value(3); weight.defined()) operands.push_back(weight);
  const int64_t reduction = call.integer(4), ignored = call.integer(5);
  const int64_t classes = operands[1].size(class_dim);
  const std::string rows = letters(dims - 1);
  std::string own = rows;
  own.insert(class_dim, 1, kClass);
  DimensionMap map{{reduction == at::Reduction::None ? rows : "", own, rows}, {own}};
  const bool weighted = operands.size() > 3;
  if (weighted) map.operands.push_back(std::string(1, kClass));
  if (axes_cutting_classes(c10::ArrayRef<Value>(operands).slice(1), class_dim) > 1) {
    map.whole = kClass;
  }
  const Resolution resolution = resolve(map, operands);
  const int axis = resolution.axis_keeping(kClass);
  check_indices(operands[2].local, classes, "nll_loss_backward", ignored);
  const Places found =
      places(operands[2].local, ignored, axis < 0 ? nullptr : resolution.axis(axis).cut.get(),
             axis < 0 ? 0 : resolution.mesh().axis(axis)->rank());
  at::Tensor each = -operands[0].local;
  if (weighted) {
    const at::Tensor weight = never_empty(operands[3].local, 0);
    each = each * weight.gather(0, found.place.flatten()).view(found.place.sizes());
  }
  if (reduction == at::Reduction::Mean) each = each / call.value(6).local;
  each = each.expand_as(found.place).masked_fill(found.nothing, 0).unsqueeze(class_dim);
  const at::Tensor part = at::zeros_like(operands[1].local, at::MemoryFormat::Contiguous);
  const at::Tensor y = never_empty(part, class_dim)
                           .scatter(class_dim, found.place.unsqueeze(class_dim), each)
                           .narrow(class_dim, 0, part.size(class_dim));
  call.result(resolution.finish(y, own));
}

}  // namespace

void add_nll_loss_rules(RuleTable& table) {
  table.add({"aten::nll_loss", "aten::nll_loss_nd", "aten::nll_loss2d", "aten::nll_loss_forward",
             "aten::nll_loss2d_forward"},
            nll_loss);
  table.add({"aten::nll_loss_backward", "aten::nll_loss2d_backward"}, nll_loss_backward);
}

}  // namespace oslo
