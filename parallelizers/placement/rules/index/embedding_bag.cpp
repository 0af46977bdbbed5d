#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/index/indexing.h"

namespace oslo {
namespace {

constexpr int64_t kSum = 0, kMean = 1, kMax = 2;

// Positions in embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse,
// per_sample_weights, include_last_offset, padding_idx).
enum Argument : size_t {
  kWeight,
  kIndices,
  kOffsets,
  kByFrequency,
  kMode,
  kSparse,
  kSampleWeights,
  kLastOffset,
  kPadding
};

/// How many indices each bag has; `counts` says which count.
at::Tensor lengths(const at::Tensor& counts, const at::Tensor& offsets, bool last_offset) {
  const at::Tensor zero = at::zeros({1}, counts.options().dtype(at::kLong));
  const at::Tensor before = at::cat({zero, counts.to(at::kLong).cumsum(0)});
  at::Tensor bounds = offsets.to(at::kLong);
  if (!last_offset) bounds = at::cat({bounds, zero + counts.numel()});
  return before.gather(0, bounds).diff();
}

/// Bags of which every rank sums the rows that it holds. A row that lies elsewhere is zeros, and so
/// is padding: of infinity that nobody asked for a weight of 0 would make not-a-number. A mean is a
/// sum over the bag's length. Half precision is added up in float.
std::vector<c10::IValue> bags_of_own_rows(const Call& call, c10::ArrayRef<at::Tensor> local,
                                          const Cut& cut, int rank) {
  std::vector<c10::IValue> arguments = call.arguments().vec();
  const at::Tensor& indices = local[1];
  const OwnPositions own = own_positions(indices, cut, rank);
  at::Tensor counts = at::ones_like(own.elsewhere);
  if (!call.none(kPadding)) {
    int64_t padding = call.integer(kPadding);
    if (padding < 0) padding += cut.size();
    counts = indices.ne(padding);
    arguments[kPadding] = c10::IValue();
  }
  const bool weighted = local.size() > 3, mean = call.integer(kMode) == kMean;
  const at::Tensor here = at::logical_and(counts, own.elsewhere.logical_not());
  const at::ScalarType type = at::toOpMathType(local[0].scalar_type());
  const at::Tensor elsewhere = here.logical_not();
  const at::Tensor rows = never_empty(local[0], 0).index_select(0, own.local).to(type);
  arguments[kWeight] = rows.masked_fill(elsewhere.unsqueeze(1), 0);
  arguments[kIndices] = at::arange(indices.numel(), indices.options());
  arguments[kOffsets] = local[2];
  arguments[kMode] = kSum;
  arguments[kSparse] = false;
  if (weighted) arguments[kSampleWeights] = local[3].to(type).masked_fill(elsewhere, 0);
  auto results = call.call_with(std::move(arguments));
  if (mean) {
    const at::Tensor bag = lengths(counts, local[2], call.boolean(kLastOffset)).clamp_min(1);
    results[0] = results[0].toTensor() / bag.unsqueeze(1);
  }
  return results;
}

/// The operator on the local operands, with a dense gradient (see embedding.cpp).
std::vector<c10::IValue> bags_of_all_rows(const Call& call, c10::ArrayRef<at::Tensor> local) {
  std::vector<c10::IValue> arguments = call.arguments().vec();
  size_t next = 0;
  for (const size_t i : {kWeight, kIndices, kOffsets, kSampleWeights}) {
    if (next < local.size()) arguments[i] = local[next++];
  }
  arguments[kSparse] = false;
  return call.call_with(std::move(arguments));
}

/// weight (V, H), indices (N), offsets (B) -> (B, H) and three tensors for backward: H cut is free,
/// V cut is summed (mode sum and mean), the longest lists of a maximum need V whole.
void embedding_bag(Call& call) {
  auto operands = call.operands();
  const int64_t mode = call.integer(kMode);
  if (operands[1].dim() != 1) return call.gather("bags of one length");
  const bool by_frequency = call.boolean(kByFrequency);
  DimensionMap map{{"VH", "N", "B"}, {"BH", "n", "b", mode == kMax ? "mH" : "m"}, "NB"};
  if (operands.size() > 3) map.operands.push_back("N");
  const bool sums = mode == kSum || (mode == kMean && operands.size() == 3);
  if (!sums || by_frequency || operands[0].axes_cutting(0).size() != 1) map.whole += "V";
  const int64_t rows = operands[0].size(0);
  const Resolution resolution = resolve(map, operands);
  const int axis = resolution.axis_keeping('V');
  c10::SmallVector<at::Tensor, 4> local;
  for (Value& operand : operands) local.push_back(std::move(operand.local));
  if (axis < 0) {
    const auto results = bags_of_all_rows(call, local);
    for (size_t i = 0; i < results.size(); ++i) {  // none is a partial sum
      call.result({results[i].toTensor(), resolution.layout_of(map.results[i])});
    }
    return;
  }
  check_indices(local[1], rows, "embedding_bag");
  const auto& cut = *resolution.axis(axis).cut;
  const auto results = bags_of_own_rows(call, local, cut, resolution.mesh().axis(axis)->rank());
  Value bags = resolution.finish(results[0].toTensor(), "BH");
  bags.local = bags.local.to(local[0].scalar_type());
  call.result(std::move(bags));
  // What is left describes the indices, which every rank has.
  for (size_t i = 1; i < results.size(); ++i) call.result_plain(results[i]);
}

}  // namespace

void add_embedding_bag_rules(RuleTable& table) {
  table.add({"aten::embedding_bag", "aten::embedding_bag.padding_idx"}, embedding_bag);
}

}  // namespace oslo
