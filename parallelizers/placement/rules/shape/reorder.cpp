#include <ATen/ATen.h>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/view_in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// t, numpy_T: (a, b) -> (b, a).
void t(Call& call) {
  const std::string own = call.letters(0);
  call.run({{own}, {std::string(own.rbegin(), own.rend())}});
}

void transpose(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  std::string swapped = own;
  if (dims > 0) std::swap(swapped[call.dimension(1, dims)], swapped[call.dimension(2, dims)]);
  call.run({{own}, {swapped}});
}

void permute(Call& call) {
  const std::string own = call.letters(0);
  std::string moved;
  for (const int64_t d : call.dimensions(1, static_cast<int64_t>(own.size()))) moved += own[d];
  call.run({{own}, {moved}});
}

void unsqueeze(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  std::string wider = own;
  wider.insert(call.dimension(1, dims + 1), "-");
  call.run({{own}, {wider}});
}

/// squeeze, with or without dimensions: what goes has one element and cannot stay cut.
void squeeze(Call& call) {
  const Value x = call.value(0);
  std::string own = letters(x.dim()), left;
  std::vector<int64_t> asked, going;
  if (call.size() > 1 && !call.integers(1).empty()) asked = call.dimensions(1, x.dim());
  for (int64_t d = 0; d < x.dim(); ++d) {
    const bool named = call.size() == 1 || std::find(asked.begin(), asked.end(), d) != asked.end();
    if (named && x.size(d) == 1) {
      own[d] = '-';
      going.push_back(d);
    } else {
      left += own[d];
    }
  }
  // By name: a dimension that is longer may have one element on this rank.
  call.run({{own}, {left}}, [&](c10::ArrayRef<at::Tensor> local) -> std::vector<c10::IValue> {
    return {local[0].squeeze(going)};
  });
}

void unsqueeze_in_place(Call& call) {
  view_in_place(call, [&](const at::Tensor& x) { return at::unsqueeze(x, call.integer(1)); });
}

void squeeze_in_place(Call& call) {
  view_in_place(call, [&](const at::Tensor& x) {
    return call.size() == 1 ? at::squeeze(x) : at::squeeze(x, call.integers(1));
  });
}

void transpose_in_place(Call& call) {
  view_in_place(call, [&](const at::Tensor& x) {
    return at::transpose(x, call.integer(1), call.integer(2));
  });
}

void t_in_place(Call& call) {
  view_in_place(call, [](const at::Tensor& x) { return at::t(x); });
}

/// diagonal(self, offset, dim1, dim2): both dimensions go, and must be whole; the diagonal comes
/// last.
void diagonal(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const char first = own[call.dimension(2, dims)], second = own[call.dimension(3, dims)];
  std::string left = own;
  std::erase(left, first);
  std::erase(left, second);
  call.run({{own}, {left + "-"}, {first, second}});
}

/// diag_embed(self, offset, dim1, dim2): the last dimension becomes the diagonal of two new ones.
void embed_diagonal(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const int64_t first = call.dimension(2, dims + 1), second = call.dimension(3, dims + 1);
  if (dims == 0 || first == second) throw ShapeMismatch("diag_embed: no two new dimensions");
  std::string wider = own.substr(0, own.size() - 1);
  wider.insert(std::min(first, second), "-");
  wider.insert(std::max(first, second), "-");
  call.run({{own}, {wider}, own.substr(own.size() - 1)});
}

}  // namespace

void add_reorder_rules(RuleTable& table) {
  table.add({"aten::t", "aten::numpy_T"}, t);
  table.add({"aten::transpose.int"}, transpose);
  table.add({"aten::permute"}, permute);
  table.add({"aten::unsqueeze"}, unsqueeze);
  table.add({"aten::squeeze", "aten::squeeze.dim", "aten::squeeze.dims"}, squeeze);
  table.add({"aten::unsqueeze_"}, unsqueeze_in_place);
  table.add({"aten::squeeze_", "aten::squeeze_.dim", "aten::squeeze_.dims"}, squeeze_in_place);
  table.add({"aten::transpose_"}, transpose_in_place);
  table.add({"aten::t_"}, t_in_place);
  table.add({"aten::diagonal"}, diagonal);
  table.add({"aten::diag_embed"}, embed_diagonal);
}

}  // namespace oslo
