#include <ATen/ATen.h>

#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/index/indexing.h"

namespace oslo {
namespace {

constexpr char kSearched = '#';  ///< the dimension of the table that is looked up

int64_t elements(const Value& x) {
  return c10::multiply_integers(x.sizes());
}

/// Whether every rank looks up what it holds and the results are summed, rather than the table
/// gathered: where that moves less (an all-reduce counts twice).
bool worth_summing(const Value& table, int64_t dim, int64_t results) {
  const at::ScalarType type = table.local.scalar_type();
  const bool sums = at::isFloatingType(type) || type == at::kLong || type == at::kInt;
  return sums && table.axes_cutting(dim).size() == 1 && 2 * results <= elements(table);
}

/// Which index looks up in which dimension of the table (operand 0).
struct Search {
  size_t index;           ///< operand
  int64_t dim;            ///< of the table
  int64_t trailing;       ///< dimensions of the result behind the index's
  bool from_end = false;  ///< an index below 0 counts from there
};

/// Runs a look-up. Where the searched dimension stays cut, this rank's elements count and the
/// others are zero.
void look_up(Call& call, const DimensionMap& map, const Search& search) {
  auto operands = call.operands();
  const int64_t size = operands[0].size(search.dim);
  const Resolution resolution = resolve(map, operands);
  c10::SmallVector<at::Tensor, 4> local;
  for (Value& operand : operands) local.push_back(std::move(operand.local));
  const int axis = resolution.axis_keeping(map.operands[0][search.dim]);
  at::Tensor elsewhere;
  if (axis >= 0) {
    at::Tensor& wanted = local[search.index];
    if (search.from_end) wanted = at::where(wanted.lt(0), wanted + size, wanted);
    check_indices(wanted, size, call.name());
    const int rank = resolution.mesh().axis(axis)->rank();
    OwnPositions own = own_positions(wanted, *resolution.axis(axis).cut, rank);
    wanted = std::move(own.local);
    local[0] = never_empty(local[0], search.dim);
    std::vector<int64_t> sizes = own.elsewhere.sizes().vec();
    sizes.resize(sizes.size() + search.trailing, 1);
    elsewhere = own.elsewhere.view(sizes);
    // An index on the CPU may look up in a table on a GPU.
    if (local[0].is_cuda()) elsewhere = elsewhere.to(local[0].device());
  }
  at::Tensor found = call.call_below(local)[0].toTensor();
  if (axis >= 0) found = found.masked_fill(elsewhere, 0);
  call.result(resolution.finish(std::move(found), map.results[0]));
}

/// gather(self, dim, index, sparse_grad): the index may be shorter in other dimensions, which then
/// must be whole.
void gather(Call& call) {
  const Value table = call.value(0), index = call.value(2);
  if (table.dim() != index.dim() || table.dim() == 0) return call.gather("a scalar");
  const int64_t dim = call.dimension(1, table.dim());
  std::string own = letters(table.dim()), other = own, whole;
  own[dim] = kSearched;
  other[dim] = kIndex;
  for (int64_t d = 0; d < table.dim(); ++d) {
    if (d != dim && table.size(d) != index.size(d)) whole += own[d];
  }
  if (!worth_summing(table, dim, elements(index))) whole += kSearched;
  look_up(call, {{own, other}, {other}, whole}, {1, dim, 0});
}

/// index_select(self, dim, index).
void index_select(Call& call) {
  const Value table = call.value(0), index = call.value(2);
  if (table.dim() == 0 || index.dim() > 1) return call.gather("a scalar");
  const int64_t dim = call.dimension(1, table.dim());
  std::string own = letters(table.dim()), result = own;
  own[dim] = kSearched;
  result[dim] = index.dim() == 0 ? '-' : kIndex;
  const int64_t results = elements(table) / std::max<int64_t>(1, table.size(dim)) * elements(index);
  std::string whole;
  if (index.dim() == 0 || !worth_summing(table, dim, results)) whole += kSearched;
  look_up(call, {{own, std::string(index.dim(), kIndex)}, {result}, whole},
          {1, dim, table.dim() - dim - 1});
}

/// Elements of a result whose letters all stand in the operands.
int64_t elements_of(const std::string& result, const DimensionMap& map,
                    c10::ArrayRef<Value> operands) {
  int64_t count = 1;
  for (const char letter : result) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const size_t dim = map.operands[i].find(letter);
      if (dim == std::string::npos) continue;
      count *= operands[i].size(static_cast<int64_t>(dim));
      break;
    }
  }
  return count;
}

/// index(self, indices): dimensions that no index touches stay cut, and so do those of the indices.
/// Of those that are looked up one may be cut.
void index(Call& call) {
  const Indexing indexing = indexing_of(call);
  if (!indexing.understood) return call.gather("looks up by an unusual index");
  DimensionMap map{{indexing.self}, {indexing.result}, indexing.touched};
  map.operands.append(indexing.indices.begin(), indexing.indices.end());
  if (indexing.masks) map.whole += indexing.common;
  const auto operands = call.operands();
  Search search{0, 0, 0, /*from_end=*/true};
  int cut_dims = 0;
  for (size_t i = 0; !indexing.masks && i < indexing.touched.size(); ++i) {
    const auto dim = static_cast<int64_t>(indexing.self.find(indexing.touched[i]));
    if (!operands[0].cut_at(dim)) continue;
    search.index = i + 1;
    search.dim = dim;
    ++cut_dims;
  }
  const int64_t results = elements_of(indexing.result, map, operands);
  if (cut_dims != 1 || !worth_summing(operands[0], search.dim, results)) return call.run(map);
  std::erase(map.whole, indexing.self[search.dim]);
  if (!indexing.common.empty()) {
    search.trailing = static_cast<int64_t>(
        indexing.result.size() - indexing.result.find(indexing.common) - indexing.common.size());
  }
  look_up(call, map, search);
}

/// searchsorted(sorted_sequence, self, ..., sorter): the sequence's last dimension must be whole.
void searchsorted(Call& call) {
  const Value sequence = call.value(0), wanted = call.value(1);
  const std::string own = letters(wanted.dim());
  if (sequence.dim() != 1 && sequence.dim() != wanted.dim()) {
    throw ShapeMismatch("searchsorted: the sequence's leading dimensions differ");
  }
  std::string searched = sequence.dim() == 1 ? std::string(1, kSearched) : own;
  searched.back() = kSearched;
  DimensionMap map{{searched, own}, {own}, std::string(1, kSearched)};
  if (call.value(5).defined()) map.operands.push_back(searched);
  call.run(map);
}

/// bucketize(self, boundaries), isin(elements, test_elements): each element against all of a list.
void against_list(Call& call) {
  const std::string own = call.letters(0);
  const std::string list(call.dim(1), kSearched);
  call.run({{own, list}, {own}, std::string(1, kSearched)});
}

/// How many classes there are when the call does not say: one more than the largest index.
int64_t classes_of(const Call& call) {
  // The whole's: of a parallel parameter the tensor itself has this rank's sizes.
  for (const int64_t size : call.value(0).sizes()) {
    if (size == 0) return 0;
  }
  return call.tensor(0).max().item<int64_t>() + 1;
}

/// one_hot(self, num_classes).
void one_hot(Call& call) {
  const std::string own = call.letters(0);
  int64_t classes = call.integer(1);
  if (classes < 0) classes = classes_of(call);
  call.run({{own}, {own + "-"}}, [&](c10::ArrayRef<at::Tensor> local) {
    return call.call_with({local[0], classes});
  });
}

/// bincount(self, weights, minlength): counts of a cut vector are partial sums.
void bincount(Call& call) {
  const Value self = call.value(0), weights = call.value(1);
  if (self.dim() != 1 || (weights.defined() && weights.dim() != 1)) return call.gather("no vector");
  const int64_t bins = std::max(call.integer(2), classes_of(call));
  DimensionMap map{{"a"}, {""}};
  if (weights.defined()) map.operands.push_back("a");
  const at::ScalarType type = !weights.defined()                          ? at::kLong
                              : weights.local.scalar_type() == at::kFloat ? at::kFloat
                                                                          : at::kDouble;
  call.run(map, [&](c10::ArrayRef<at::Tensor> local) -> std::vector<c10::IValue> {
    const c10::IValue weight = local.size() > 1 ? c10::IValue(local[1]) : c10::IValue();
    // Of an empty part LibTorch counts in integers, weights or not.
    return {call.call_with({local[0], weight, bins})[0].toTensor().to(type)};
  });
}

}  // namespace

void add_lookup_rules(RuleTable& table) {
  table.add({"aten::gather"}, gather);
  table.add({"aten::index_select"}, index_select);
  table.add({"aten::index.Tensor"}, index);
  table.add({"aten::searchsorted.Tensor"}, searchsorted);
  table.add({"aten::bucketize.Tensor", "aten::isin.Tensor_Tensor"}, against_list);
  table.add({"aten::one_hot"}, one_hot);
  table.add({"aten::bincount"}, bincount);
}

}  // namespace oslo
