#include <ATen/ATen.h>

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// The one axis on which all operands are cut along `dim`, and nothing else there; -1 without one.
int common_axis(const std::vector<Value>& operands, int64_t dim) {
  int axis = -1;
  for (const Value& operand : operands) {
    if (!operand.layout) return -1;
    int own = -1;
    for (int a = 0; a < operand.layout->axes(); ++a) {
      if ((*operand.layout)[a].dim != dim) continue;
      if (own >= 0) return -1;
      own = a;
    }
    if (own < 0 || (axis >= 0 && own != axis)) return -1;
    axis = own;
  }
  return axis;
}

/// The result of cat. Gradients that are flattened into one tensor are mostly meant for a process
/// group's own collective, and are taken apart by their local sizes after it. Where that tensor had
/// to be gathered it stays placed, so that the collective is refused.
void joined_result(Call& call, Value joined) {
  const auto tensors = call.argument(0).toTensorVector();
  if (joined.cut() || call.keeps_results_placed() ||
      std::none_of(tensors.begin(), tensors.end(), shows_parameter)) {
    return call.result(std::move(joined));
  }
  joined.layout = std::make_shared<Layout>(call.context());
  call.result_plain(wrap_placed(std::move(joined)));
}

/// cat: along a whole dimension the rest may be cut; along a cut one the stretches follow each
/// other, so that putting query, key and value back together moves nothing.
void cat(Call& call) {
  std::vector<Value> operands = call.values(0);
  int64_t dims = 0;
  for (const Value& operand : operands) dims = std::max(dims, operand.dim());
  // Empty vectors are legal beside any shape, and add nothing.
  std::erase_if(operands,
                [&](const Value& x) { return x.dim() == 1 && dims > 1 && x.size(0) == 0; });
  OSLO_CHECK(!operands.empty(), "cat of nothing");
  const int64_t dim = call.dimension(1, operands.front().dim());
  const std::string own = letters(operands.front().dim());
  const int joined_axis = common_axis(operands, dim);
  for (const Value& operand : operands) {
    if (operand.dim() != dims) throw ShapeMismatch("cat: operands of unequal rank");
  }
  DimensionMap map;
  map.operands.assign(operands.size(), own);
  map.results = {own};
  map.whole = std::string(1, own[dim]);

  Cut::Runs runs;
  if (joined_axis >= 0) {
    // Hide the joined cuts from the engine, which would want them equal.
    for (Value& operand : operands) {
      auto layout = std::make_shared<Layout>(*operand.layout);
      const Cut& cut = *(*layout)[joined_axis].cut;
      runs.append(cut.runs().begin(), cut.runs().end());
      (*layout)[joined_axis] = {};
      operand.layout = std::move(layout);
    }
  }
  // With hidden cuts sizes are local, and no ground for decisions that all ranks must share.
  const Resolution resolution =
      resolve(map, operands, joined_axis >= 0 ? Keep::first_operand : Keep::cheapest);
  std::vector<at::Tensor> local;
  for (Value& operand : operands) local.push_back(std::move(operand.local));
  Value all = resolution.finish(joined(std::move(local), dim), own);
  if (joined_axis >= 0) {
    auto layout = all.layout ? std::make_shared<Layout>(*all.layout)
                             : std::make_shared<Layout>(resolution.context());
    (*layout)[joined_axis] = {dim, std::make_shared<Cut>(std::move(runs))};
    all.layout = std::move(layout);
  }
  joined_result(call, std::move(all));
}

void stack(Call& call) {
  const auto operands = call.operands();
  for (const Value& operand : operands) {
    if (operand.dim() != operands.front().dim()) throw ShapeMismatch("stack: unequal rank");
  }
  const std::string own = letters(operands.front().dim());
  std::string wider = own;
  wider.insert(call.dimension(1, static_cast<int64_t>(own.size()) + 1), "-");
  DimensionMap map;
  map.operands.assign(operands.size(), own);
  map.results = {wider};
  call.run(map);
}

/// A size-1 dimension stretches; the sizes of cut dimensions become local.
void expand(Call& call) {
  Value x = call.value(0);
  std::vector<int64_t> sizes = call.integers(1);
  const auto added = static_cast<int64_t>(sizes.size()) - x.dim();
  if (added < 0) throw ShapeMismatch("expand: fewer sizes than dimensions");
  std::string own = letters(x.dim());
  for (int64_t d = 0; d < x.dim(); ++d) {
    const int64_t wanted = sizes[d + added];
    if (x.size(d) == 1 && wanted != 1 && wanted != -1) {
      own[d] = '-';
    } else if (wanted != -1 && wanted != x.size(d)) {
      throw ShapeMismatch(
          c10::str("expand: ", wanted, " asked of dimension ", d, ", which has ", x.size(d)));
    }
  }
  const LayoutPtr before = x.layout;
  const Resolution resolution = resolve({{own}, {own}}, std::span(&x, 1));
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (own[d] != '-') sizes[d + added] = x.local.size(d);
  }
  const std::string result = std::string(added, '-') + own;
  Value y = resolution.finish(x.local.expand(sizes), result);
  call.result(std::move(y), x.layout == before ? nullptr : &x);
}

/// Elements repeated in place: pieces grow by the factor (grouped query attention's key heads).
void repeat_interleave(Call& call) {
  const Value x = call.value(0);
  if (call.none(2)) return call.gather("flattens");
  const int64_t repeats = call.integer(1), dim = call.dimension(2, x.dim());
  if (repeats == 0) return call.gather("makes an empty dimension");
  at::Tensor local = x.local.repeat_interleave(repeats, dim);
  auto layout = std::make_shared<Layout>(*x.layout);
  for (int axis = 0; axis < layout->axes(); ++axis) {
    if ((*layout)[axis].dim == dim) (*layout)[axis].cut = (*layout)[axis].cut->scaled(repeats);
  }
  call.result({std::move(local), std::move(layout)});
}

/// Tiles: a rank's part as often as the whole, its stretches follow each other as often.
void repeat(Call& call) {
  const Value x = call.value(0);
  const std::vector<int64_t> times = call.integers(1);
  const auto added = static_cast<int64_t>(times.size()) - x.dim();
  if (added < 0) throw ShapeMismatch("repeat: fewer repeats than dimensions");
  if (std::find(times.begin(), times.end(), 0) != times.end()) {
    return call.gather("makes an empty dimension");
  }
  at::Tensor local = x.local.repeat(times);
  auto layout = std::make_shared<Layout>(*x.layout);
  for (int axis = 0; axis < layout->axes(); ++axis) {
    auto& [dim, cut] = (*layout)[axis];
    if (dim < 0) continue;
    dim += added;
    if (times[dim] != 1) cut = cut->repeated(times[dim]);
  }
  call.result({std::move(local), std::move(layout)});
}

}  // namespace

void add_join_rules(RuleTable& table) {
  table.add({"aten::cat", "aten::concat", "aten::concatenate"}, cat);
  table.add({"aten::stack"}, stack);
  table.add({"aten::expand"}, expand);
  table.add({"aten::repeat_interleave.self_int"}, repeat_interleave);
  table.add({"aten::repeat"}, repeat);
}

}  // namespace oslo
