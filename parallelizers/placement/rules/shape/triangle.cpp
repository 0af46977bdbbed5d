#include <ATen/ATen.h>

#include <span>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/positions.h"

namespace oslo {
namespace {

/// How far each element of this rank's matrices is to the right of the main diagonal.
at::Tensor right_of_diagonal(const Value& x) {
  const int64_t dims = x.dim();
  const at::Device device = x.local.device();
  return positions_along(x, dims - 1, device) - positions_along(x, dims - 2, device).unsqueeze(1);
}

/// tril, triu (self, diagonal): a triangle of the whole matrix, of which a rank knows its rows and
/// columns.
template <bool lower>
void triangle(Call& call) {
  const Value x = call.value(0);
  const int64_t dims = x.dim();
  if (dims < 2) throw ShapeMismatch("tril, triu: fewer than two dimensions");
  if (!x.cut_at(dims - 1) && !x.cut_at(dims - 2)) {
    return call.run({{letters(dims)}, {letters(dims)}});
  }
  const at::Tensor offset = right_of_diagonal(x);
  const int64_t diagonal = call.integer(1);
  const at::Tensor outside = lower ? offset.gt(diagonal) : offset.lt(diagonal);
  call.result({x.local.masked_fill(outside, 0), x.layout});
}

/// The sum of what each rank has of the diagonal. One device adds half precision up in float. Its
/// gradient of a tall matrix has the diagonal begin anew below the last column, and is what users
/// compare with.
void trace(Call& call) {
  Value x = call.value(0);
  if (x.dim() != 2) throw ShapeMismatch("trace: no matrix");
  const at::ScalarType type = x.local.scalar_type();
  if (type == at::kBool) return call.gather("truth values have no trace");
  if (x.size(0) > x.size(1) + 1) return call.gather("LibTorch's own gradient of a tall matrix");
  const Resolution resolution = resolve({{"ab"}, {""}}, std::span(&x, 1));
  if (resolution.axes_beside("").empty()) return call.run({{"ab"}, {""}});
  const at::Tensor own = x.local.masked_fill(right_of_diagonal(x).ne(0), 0);
  const bool half = at::isReducedFloatingType(type);
  Value sum = resolution.finish(half ? own.sum(at::kFloat) : own.sum(), "");
  if (half) sum.local = sum.local.to(type);
  call.result(std::move(sum));
}

}  // namespace

void add_triangle_rules(RuleTable& table) {
  table.add({"aten::tril"}, triangle<true>);
  table.add({"aten::triu"}, triangle<false>);
  table.add({"aten::trace"}, trace);
}

}  // namespace oslo
