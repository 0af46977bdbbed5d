#include <ATen/ATen.h>

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/index/indexing.h"

namespace oslo {
namespace {

/// The operator itself on other rows. Its gradient is dense, whatever the table asks for: the nodes
/// that it passes on its way to a cut table cannot carry a sparse one. The values are the same.
at::Tensor lookup(const Call& call, const at::Tensor& weight, const at::Tensor& indices,
                  int64_t padding) {
  return call.call_with({weight, indices, padding, call.argument(3), /*sparse=*/false})[0]
      .toTensor();
}

/// Looks up the rows that this rank holds; zeros for the others' (Megatron-LM's vocabulary-parallel
/// embedding). The sum over the axis is the lookup.
at::Tensor masked_lookup(const Call& call, const at::Tensor& weight, const at::Tensor& indices,
                         int64_t first, int64_t padding) {
  const int64_t rows = weight.size(0);
  const OwnPositions own = own_positions(indices, first, rows);
  const int64_t own_padding = padding >= first && padding < first + rows ? padding - first : -1;
  const at::Tensor found = lookup(call, never_empty(weight, 0), own.local, own_padding);
  return found.masked_fill(own.elsewhere.unsqueeze(-1), 0);
}

/// Whether the rows of every rank follow each other in the whole, however many axes cut them.
bool follow_each_other(const Value& weight) {
  for (const int axis : weight.axes_cutting(0)) {
    if (!(*weight.layout)[axis].cut->contiguous()) return false;
  }
  return true;
}

/// The first row that this rank holds, of those that these axes cut, inside each other.
int64_t first_row(const Resolution& resolution, const Axes& axes) {
  int64_t first = 0;
  for (const int axis : axes) {
    first += first_index(*resolution.axis(axis).cut, resolution.mesh().axis(axis)->rank());
  }
  return first;
}

/// weight (V, H), indices (..): V cut: masked lookup, partial sums; H cut: the result is cut.
void embedding(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  const Mark* mark = mark_of(call.tensor(0));
  const int64_t padding = mark && mark->padding_row >= 0 ? mark->padding_row : call.integer(2);
  const bool by_frequency = call.boolean(3);
  const std::string rows = letters(operands[1].dim());
  DimensionMap map{{"VH", rows}, {rows + "H"}};
  if (by_frequency || !follow_each_other(operands[0])) map.whole = "V";
  if (by_frequency) map.whole += rows;  // counts over all indices
  const int64_t words = operands[0].size(0);
  const Resolution resolution = resolve(map, operands);
  const at::Tensor& weight = operands[0].local;
  const at::Tensor& indices = operands[1].local;
  const auto finish = [&](at::Tensor local) {
    call.result(resolution.finish(std::move(local), map.results[0]));
  };
  if (const Axes axes = resolution.axes_keeping("V"); !axes.empty()) {
    check_indices(indices, words, "embedding");
    return finish(masked_lookup(call, weight, indices, first_row(resolution, axes), padding));
  }
  finish(lookup(call, weight, indices, padding));
}

}  // namespace

void add_embedding_rules(RuleTable& table) {
  table.add({"aten::embedding"}, embedding);
}

}  // namespace oslo
