#include <ATen/ATen.h>

#include <string_view>

#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/index/indexing.h"

namespace oslo {
namespace {

constexpr char kWritten = '#';  ///< the dimension of the target that the index speaks of

/// What the operator makes of a part in which each index speaks of one element: in bfloat16 and
/// half LibTorch's product takes the second such for something else, and asserts. Beside another
/// row of elements it is itself.
at::Tensor beside_another(Call& call, c10::ArrayRef<at::Tensor> own, int64_t row) {
  const auto widened = [&](const at::Tensor& part) { return at::cat({part, part}, row); };
  std::vector<c10::IValue> arguments = call.arguments().vec();
  arguments[0] = widened(own[0]);
  arguments[2] = own[1];
  arguments[3] = widened(own[2]);
  const at::Tensor wide = call.call_with(std::move(arguments))[0].toTensor().narrow(row, 0, 1);
  return call.op().in_place ? at::Tensor(own[0]).copy_(wide) : wide.contiguous();
}

/// A dimension but `dim` of one element, if all but `dim` have one; -1 otherwise.
int64_t row_of_one(const at::Tensor& part, int64_t dim) {
  if (part.dim() < 2 || part.numel() == 0 || part.numel() != part.size(dim)) return -1;
  return dim == 0 ? 1 : 0;
}

/// Runs a write described by `map`: a new tensor, or into the target, which keeps its cut. A rank
/// without elements of the target calls no kernel, as some refuse that; what would have been
/// written has a gradient of zero from it.
void write(Call& call, const DimensionMap& map, const Call::LocalFunction& some) {
  const Call::LocalFunction local = [&](c10::ArrayRef<at::Tensor> own) -> std::vector<c10::IValue> {
    if (own[0].numel() > 0) return some(own);
    at::Tensor nothing = call.op().in_place ? own[0] : own[0].clone();
    for (const at::Tensor& other : own.slice(1)) {
      if (other.requires_grad()) nothing = nothing.add_(other.sum() * 0);
    }
    return {nothing};
  };
  if (!call.op().in_place) return call.run(map, local);
  const Value target = call.value(0);
  for (int axis = 0; target.layout && axis < target.layout->axes(); ++axis) {
    const int64_t dim = (*target.layout)[axis].dim;
    if (dim >= 0 && map.whole.find(map.operands[0][dim]) != std::string::npos) {
      return gather_in_place(call, "writes along a cut dimension");
    }
  }
  run_in_place(
      call, [&](c10::ArrayRef<Value>) { return map; }, local);
}

void write(Call& call, const DimensionMap& map) {
  write(call, map, [&](c10::ArrayRef<at::Tensor> own) { return call.call_below(own); });
}

/// scatter, scatter_add, scatter_reduce (self, dim, index, src or value): index and source may be
/// shorter than the target in other dimensions, which then must be whole.
void scatter(Call& call) {
  const auto operands = call.operands();
  const Value& self = operands[0];
  const int64_t dims = self.dim(), dim = call.dimension(1, dims);
  std::string own = letters(dims), other = own, whole{kWritten, kIndex};
  if (dims > 0) {
    own[dim] = kWritten;
    other[dim] = kIndex;
  }
  DimensionMap map{{own}, {own}};
  for (size_t i = 1; i < operands.size(); ++i) {
    const bool alike = operands[i].dim() == dims;
    map.operands.push_back(alike ? other : std::string(operands[i].dim(), kIndex));
    for (int64_t d = 0; d < dims; ++d) {
      if (d != dim && (!alike || operands[i].size(d) != self.size(d))) whole += own[d];
    }
  }
  map.whole = whole;
  write(call, map);
}

/// index_add, index_copy, index_fill, index_reduce (self, dim, index, source or value).
void index_along(Call& call) {
  const auto operands = call.operands();
  const int64_t dims = operands[0].dim(), dim = call.dimension(1, dims);
  std::string own = letters(dims), other = own, whole{kWritten, kIndex};
  if (dims > 0) {
    own[dim] = kWritten;
    other[dim] = kIndex;
  }
  DimensionMap map{{own, std::string(operands[1].dim(), kIndex)}, {own}};
  if (operands.size() > 2) {
    const int64_t source = operands[2].dim();
    map.operands.push_back(source == dims ? other : std::string(source, kIndex));
    if (source != dims && source > 0) whole += own;
  }
  map.whole = whole;
  const bool reduces = std::string_view(call.name()).starts_with("aten::index_reduce");
  write(call, map, [&](c10::ArrayRef<at::Tensor> own) -> std::vector<c10::IValue> {
    const int64_t row = reduces ? row_of_one(own[0], dim) : -1;
    const bool refused = row >= 0 && at::isReducedFloatingType(own[0].scalar_type()) &&
                         own[2].dim() == dims && operands[0].size(row) > 1;
    if (refused) return {beside_another(call, own, row)};
    return call.call_below(own);
  });
}

/// A new tensor with `source` in the place of some part, by position: the dimensions in which the
/// part lies must be whole.
void put_part(Call& call, const std::string& own, const std::string& source,
              const std::string& whole) {
  if (own.empty() || call.dim(1) != static_cast<int64_t>(source.size())) {
    throw ShapeMismatch(c10::str(call.name(), ": the source has another number of dimensions"));
  }
  call.run({{own, source}, {own}, whole});
}

/// select_scatter(self, src, dim, index).
void select_scatter(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const std::string along = own.substr(call.dimension(2, dims), 1);
  std::string source = own;
  source.erase(call.dimension(2, dims), 1);
  put_part(call, own, source, along);
}

/// slice_scatter(self, src, dim, start, end, step).
void slice_scatter(Call& call) {
  const int64_t dims = call.dim(0), dim = call.dimension(2, dims);
  std::string own = letters(dims), source = own;
  if (dims > 0) {
    own[dim] = kWritten;
    source[dim] = kIndex;
  }
  put_part(call, own, source, {kWritten, kIndex});
}

/// diagonal_scatter(self, src, offset, dim1, dim2): the diagonal is the source's last dimension.
void diagonal_scatter(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const char first = own[call.dimension(3, dims)], second = own[call.dimension(4, dims)];
  std::string source = own;
  std::erase(source, first);
  std::erase(source, second);
  put_part(call, own, source + kIndex, {first, second, kIndex});
}

/// One value into the places of one mask: as masked_fill, a mask of fewer dimensions aligned from
/// the left.
std::optional<DimensionMap> as_masked_fill(const Call& call, const Indexing& indexing) {
  const auto operands = call.operands();
  const bool accumulates = call.boolean(3);
  if (!indexing.masks || operands.size() != 3 || accumulates ||
      c10::multiply_integers(operands[2].sizes()) != 1 ||
      indexing.touched != indexing.self.substr(0, indexing.touched.size())) {
    return std::nullopt;
  }
  const std::string one(operands[2].dim(), '-');
  return DimensionMap{{indexing.self, indexing.touched, one}, {indexing.self}};
}

/// index_put(self, indices, values, accumulate): what no index touches stays cut.
void index_put(Call& call) {
  const Indexing indexing = indexing_of(call);
  if (!indexing.understood) {
    return call.op().in_place ? gather_in_place(call, "writes by an unusual index")
                              : call.gather("writes by an unusual index");
  }
  if (const auto map = as_masked_fill(call, indexing)) return write(call, *map);
  const Value values = call.value(2);
  const auto missing = static_cast<int64_t>(indexing.result.size()) - values.dim();
  std::string put =
      missing >= 0 ? indexing.result.substr(missing) : std::string(-missing, '-') + indexing.result;
  for (int64_t d = 0; d < values.dim(); ++d) {
    if (values.size(d) == 1) put[d] = '-';
  }
  DimensionMap map{{indexing.self}, {indexing.self}, indexing.touched + indexing.common};
  map.operands.append(indexing.indices.begin(), indexing.indices.end());
  map.operands.push_back(put);
  write(call, map);
}

/// fill_diagonal_, whose definition speaks of one storage.
void fill_diagonal(Call& call) {
  gather_in_place(call, "a diagonal needs both of its dimensions");
}

}  // namespace

void add_indexed_write_rules(RuleTable& table) {
  table.add({"aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce",
             "aten::scatter.value_reduce", "aten::scatter_add", "aten::scatter_reduce.two",
             "aten::scatter_.src", "aten::scatter_.value", "aten::scatter_.reduce",
             "aten::scatter_.value_reduce", "aten::scatter_add_", "aten::scatter_reduce_.two"},
            scatter);
  table.add(
      {"aten::index_add", "aten::index_copy", "aten::index_fill.int_Scalar",
       "aten::index_fill.int_Tensor", "aten::index_reduce", "aten::index_add_", "aten::index_copy_",
       "aten::index_fill_.int_Scalar", "aten::index_fill_.int_Tensor", "aten::index_reduce_"},
      index_along);
  table.add({"aten::select_scatter"}, select_scatter);
  table.add({"aten::slice_scatter"}, slice_scatter);
  table.add({"aten::diagonal_scatter"}, diagonal_scatter);
  table.add({"aten::fill_diagonal_"}, fill_diagonal);
  table.add({"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}, index_put);
}

}  // namespace oslo
