#include <ATen/ATen.h>

#include "mpu/collectives/collectives.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// The only axis that cuts `dim`, if its ranks' parts follow each other; -1 otherwise.
int scanning_axis(const Value& x, int64_t dim) {
  const Axes cutting = x.axes_cutting(dim);
  if (cutting.size() != 1 || !(*x.layout)[cutting[0]].cut->contiguous()) return -1;
  return cutting[0];
}

/// Operators along argument `Dim`, which must be whole; all results are shaped like the operand.
template <size_t Dim>
void along(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  run_on_elements(call, {{own}, {own}, std::string(1, own[call.dimension(Dim, dims)])});
}

/// The same for results without that dimension, or with one element there (argument Dim + 1).
template <size_t Dim>
void pick_along(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const int64_t dim = call.dimension(Dim, dims);
  std::string result = own;
  result.replace(dim, 1, call.boolean(Dim + 1) ? "-" : "");
  call.run({{own}, {result}, std::string(1, own[dim])});
}

/// aminmax(self, dim, keepdim).
void aminmax(Call& call) {
  if (call.none(1)) return call.gather("searches all elements");
  pick_along<1>(call);
}

/// quantile, nanquantile (self, q, dim, keepdim): one result for each q, in front.
void quantile(Call& call) {
  if (call.none(2)) return call.gather("searches all elements");
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const int64_t dim = call.dimension(2, dims);
  std::string result = own;
  result.replace(dim, 1, call.boolean(3) ? "-" : "");
  DimensionMap map{{own}, {}, std::string(1, own[dim]) + 'Q'};
  if (call.is_tensor(1)) {
    map.operands.push_back(std::string(call.dim(1), 'Q'));
    result = std::string(call.dim(1), '-') + result;
  }
  map.results = {result};
  run_on_elements(call, map);
}

/// diff(self, n, dim, prepend, append): whole along `dim`, in which the operands differ.
void diff(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  DimensionMap map{{}, {own}, std::string(1, own[call.dimension(2, dims)])};
  for (const Value& operand : call.operands()) {
    if (operand.dim() != dims) throw ShapeMismatch("diff: operands of unequal rank");
    map.operands.push_back(own);
  }
  call.run(map);
}

struct Sum {
  static at::Tensor all(const at::Tensor& x, int64_t dim, std::optional<at::ScalarType> type) {
    return x.sum(dim, /*keepdim=*/true, type);
  }
  static at::Tensor cumulated(const at::Tensor& x, int64_t dim,
                              std::optional<at::ScalarType> type) {
    return x.cumsum(dim, type);
  }
  static at::Tensor join(const at::Tensor& x, const at::Tensor& y) { return x + y; }
};

struct Product {
  static at::Tensor all(const at::Tensor& x, int64_t dim, std::optional<at::ScalarType> type) {
    return x.prod(dim, /*keepdim=*/true, type);
  }
  static at::Tensor cumulated(const at::Tensor& x, int64_t dim,
                              std::optional<at::ScalarType> type) {
    return x.cumprod(dim, type);
  }
  static at::Tensor join(const at::Tensor& x, const at::Tensor& y) { return x * y; }
};

/// The same where no rank has more than its own: along a dimension that is whole.
template <typename Operation>
void cumulate_parts(Call& call, const DimensionMap& map, int64_t dim) {
  if (!call.op().in_place) return run_on_elements(call, map);
  run_in_place(
      call, [&](c10::ArrayRef<Value>) { return map; },
      [&](c10::ArrayRef<at::Tensor> local) {
        if (local[0].numel() > 0) return call.call_below(local);
        const auto cumulated = [&](c10::ArrayRef<at::Tensor> some) {
          return std::vector<c10::IValue>{
              Operation::cumulated(some[0], dim, some[0].scalar_type())};
        };
        const auto results = on_elements(map, local, cumulated);
        return std::vector<c10::IValue>{local[0].copy_(results[0].toTensor())};
      });
}

/// cumsum, cumprod (self, dim, dtype). Along a cut every rank starts from what the ranks before it
/// come to: one total a rank is exchanged. One device goes on from totals that it never rounds.
template <typename Operation>
void cumulate(Call& call) {
  Value x = call.value(0);
  const int64_t dim = call.dimension(1, x.dim());
  const int axis = scanning_axis(x, dim);
  const bool in_place = call.op().in_place;
  if (axis < 0) {
    if (in_place && x.cut_at(dim)) return gather_in_place(call, "needs the whole dimension");
    const std::string own = letters(x.dim());
    const DimensionMap map{{own}, {own}, std::string(1, own[dim])};
    return cumulate_parts<Operation>(call, map, dim);
  }
  std::optional<at::ScalarType> type;
  if (!call.none(2)) type = call.argument(2).toScalarType();
  if (in_place) {
    if (!type) type = x.local.scalar_type();
    x.local = x.local.clone();  // what backward remembers must outlive the write
  }
  const at::ScalarType given = type.value_or(x.local.scalar_type());
  const bool half = at::isReducedFloatingType(given);
  if (half) {
    // In two steps: the derivative of a scan that converts refuses zeros, and rounds the gradient.
    x.local = x.local.to(given).to(at::kFloat);
    type = at::kFloat;
  }
  const auto& group = x.layout->group(axis);
  const std::vector<int64_t> one_each(group->size(), 1);
  const at::Tensor total = Operation::all(x.local, dim, type);
  const at::Tensor before = Operation::all(
      gather_and_copy(total, group, dim, one_each).narrow(dim, 0, group->rank()), dim, type);
  const at::Tensor own = Operation::cumulated(x.local, dim, type);
  Value result{Operation::join(own, before), x.layout};
  if (half) result.local = result.local.to(given);
  if (!in_place) return call.result(std::move(result));
  const at::Tensor target = call.tensor(0);
  write_result(call, target, std::move(result));
  call.result_plain(target);
}

}  // namespace

void add_scan_rules(RuleTable& table) {
  table.add({"aten::cumsum", "aten::cumsum_"}, cumulate<Sum>);
  table.add({"aten::cumprod", "aten::cumprod_"}, cumulate<Product>);
  table.add({"aten::cummax", "aten::cummin", "aten::logcumsumexp", "aten::sort"}, along<1>);
  table.add({"aten::sort.stable"}, along<2>);
  table.add({"aten::kthvalue"}, pick_along<2>);
  table.add({"aten::median.dim", "aten::nanmedian.dim", "aten::mode"}, pick_along<1>);
  table.add({"aten::aminmax"}, aminmax);
  table.add(
      {"aten::quantile", "aten::quantile.scalar", "aten::nanquantile", "aten::nanquantile.scalar"},
      quantile);
  table.add({"aten::diff"}, diff);
}

}  // namespace oslo
