#include <ATen/ATen.h>

#include <optional>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/pointwise.h"
#include "parallelizers/placement/layout/cuts/cut_range.h"
#include "parallelizers/placement/layout/cuts/cut_requests.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// What is needed before any range of `dim` is taken: the axis that cuts it, if one alone does and
/// all `ranges` stay inside the ranks' parts; otherwise the dimension is gathered.
struct Sliceable {
  Value value;
  int axis = -1;
  bool gathered = false;

  const Value* held() const { return gathered ? &value : nullptr; }
};

Sliceable prepare(Value x, int64_t dim, c10::ArrayRef<std::pair<int64_t, int64_t>> ranges) {
  Sliceable ready;
  const Axes cutting = x.axes_cutting(dim);
  bool inside = cutting.size() <= 1;
  if (cutting.size() == 1) {
    const Cut& cut = *(*x.layout)[cutting[0]].cut;
    for (const auto& [start, length] : ranges) {
      inside &=
          range_of_stretches(cut, start, length, x.layout->group(cutting[0])->rank()).has_value();
    }
    const bool equal_parts =
        ranges.size() > 1 && cut.size() % static_cast<int64_t>(ranges.size()) == 0;
    if (!inside && equal_parts) wish_blocks(cut, static_cast<int64_t>(ranges.size()));
  }
  if (!inside) {
    const std::string reason =
        c10::str("takes parts of dimension ", dim, ", which is cut elsewhere");
    announce_gather(x, RuleScope::current(), reason);
    x.layout->context()->gathers().record(
        RuleScope::current(), reason,
        x.local.numel() * static_cast<int64_t>(x.local.element_size()));
    x = gather_axis(std::move(x), cutting[0]);  // and the inner cuts of it
    ready.gathered = true;
  } else if (!cutting.empty()) {
    ready.axis = cutting[0];
  }
  ready.value = std::move(x);
  return ready;
}

/// What `axis` cuts along `dim`, of which each rank keeps its share of a range.
Value narrow_cut(const Value& x, int axis, int64_t dim, CutRange range) {
  auto layout = std::make_shared<Layout>(*x.layout);
  (*layout)[axis] = {dim, std::move(range.cut)};
  return {x.local.narrow(dim, range.start, range.length), std::move(layout)};
}

Value narrow(const Sliceable& from, int64_t dim, int64_t start, int64_t length) {
  const Value& x = from.value;
  if (from.axis < 0) return {x.local.narrow(dim, start, length), x.layout};
  const Layout::AxisCut& cut = (*x.layout)[from.axis];
  const int rank = x.layout->group(from.axis)->rank();
  return narrow_cut(x, from.axis, dim, *range_of_stretches(*cut.cut, start, length, rank));
}

void split_into(Call& call, int64_t dim, const std::vector<int64_t>& sizes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    ranges.emplace_back(start, size);
    start += size;
  }
  const Sliceable from = prepare(call.value(0), dim, ranges);
  std::vector<Value> pieces;
  for (const auto& [begin, length] : ranges) pieces.push_back(narrow(from, dim, begin, length));
  if (!call.op().view) {
    // Pieces of an unsafe split may be written without a word to the others (a cell's gates).
    for (Value& piece : pieces) piece.local = at::unsafe_chunk(piece.local, 1, dim)[0];
  }
  call.result(std::move(pieces), from.held());
}

void split(Call& call) {
  const Value x = call.value(0);
  const int64_t dim = call.dimension(2, x.dim()), step = call.integer(1), all = x.size(dim);
  OSLO_CHECK(step > 0 || all == 0, "split expects a positive size, got ", step);
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < all; start += step) sizes.push_back(std::min(step, all - start));
  if (sizes.empty()) sizes.push_back(0);
  split_into(call, dim, sizes);
}

void split_with_sizes(Call& call) {
  const Value x = call.value(0);
  const std::vector<int64_t> sizes = call.integers(1);
  const int64_t dim = call.dimension(2, x.dim());
  int64_t total = 0;
  for (const int64_t size : sizes) total += size < 0 ? x.size(dim) + 1 : size;
  if (total != x.size(dim)) throw ShapeMismatch("split: the sizes do not add up to the dimension");
  split_into(call, dim, sizes);
}

/// chunk: ceil(size / chunks) each, as one device cuts.
void chunk(Call& call) {
  const Value x = call.value(0);
  const int64_t dim = call.dimension(2, x.dim()), chunks = call.integer(1), all = x.size(dim);
  OSLO_CHECK(chunks > 0, "chunk expects a positive number of chunks, got ", chunks);
  const int64_t step = std::max<int64_t>(1, (all + chunks - 1) / chunks);
  std::vector<int64_t> sizes;
  for (int64_t start = 0; start < all; start += step) sizes.push_back(std::min(step, all - start));
  if (sizes.empty()) sizes.assign(chunks, 0);
  split_into(call, dim, sizes);
}

/// tensor_split(self, indices or sections, dim) by a tensor, which LibTorch reads where it lies:
/// the whole of it says where to split, and the slices of its definition enter the door.
void split_by_tensor(Call& call) {
  const at::Tensor where =
      gather_reported(call.value(1), call.name(), "where to split follows from all indices");
  const at::Tensor x = placed_impl(call.tensor(0)) ? call.tensor(0) : wrap(call.value(0));
  torch::jit::Stack stack{x, where, call.argument(2)};
  call.op().handle.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  call.result_plain(stack[0]);
}

/// Whether any range of `dim` leaves each rank with what it has of it: of positions, which come
/// from no parameter. A range of features shall leave every rank as many of them.
bool of_positions(const Value& x, int64_t dim) {
  const Axes cutting = x.axes_cutting(dim);
  if (cutting.size() != 1) return false;
  const Cut& cut = *(*x.layout)[cutting[0]].cut;
  return cut.family().empty() && !cut.origin();
}

/// A range of positions without communication.
Value narrow_positions(const Value& x, int64_t dim, int64_t start, int64_t length) {
  const int axis = x.axes_cutting(dim)[0], rank = x.layout->group(axis)->rank();
  return narrow_cut(x, axis, dim, range_of_elements(*(*x.layout)[axis].cut, start, length, rank));
}

void slice(Call& call) {
  const Value x = call.value(0);
  const int64_t dim = call.dimension(1, x.dim()), all = x.size(dim);
  const auto bound = [&](size_t i, int64_t otherwise) {
    int64_t at = call.none(i) ? otherwise : call.integer(i);
    if (at < 0) at += all;
    return std::clamp<int64_t>(at, 0, all);
  };
  const int64_t start = bound(2, 0), end = std::max(start, bound(3, all)), step = call.integer(4);
  if (!x.cut_at(dim)) {
    call.result({x.local.slice(dim, start, end, step), x.layout});
    return;
  }
  if (step == 1 && of_positions(x, dim) && !shows_parameter(call.tensor(0))) {
    return call.result(narrow_positions(x, dim, start, end - start));
  }
  // With a step, a range of the whole dimension is taken apart after gathering.
  const bool plain = step == 1;
  const Sliceable from = prepare(x, dim, {{plain ? start : -1, plain ? end - start : 0}});
  Value part = plain ? narrow(from, dim, start, end - start)
                     : Value{from.value.local.slice(dim, start, end, step), from.value.layout};
  call.result(std::move(part), from.held());
}

/// glu(self, dim): the first half times the sigmoid of the second. Halves of a dimension that is
/// cut in two blocks lie alike.
void gated(Call& call) {
  const Value x = call.value(0);
  const int64_t dim = call.dimension(1, x.dim());
  if (x.dim() == 0 || x.size(dim) % 2 != 0) throw ShapeMismatch("glu: a dimension without halves");
  const int64_t half = x.size(dim) / 2;
  const std::vector<std::pair<int64_t, int64_t>> ranges{{0, half}, {half, half}};
  const Sliceable from = prepare(x, dim, ranges);
  c10::SmallVector<Value, 2> halves{narrow(from, dim, 0, half), narrow(from, dim, half, half)};
  resolve(pointwise_map(halves), halves, Keep::first_operand);
  call.result({halves[0].local * halves[1].local.sigmoid(), halves[0].layout});
}

/// Elements of a dimension, which goes and therefore cannot stay cut.
void take_elements(Call& call, int64_t dim, bool expected) {
  std::string own = letters(call.dim(0)), left = own;
  left.erase(dim, 1);
  const std::string whole(1, own[dim]);
  call.run({{own}, {left}, whole, expected ? whole : ""});
}

void unbind(Call& call) {
  take_elements(call, call.dimension(1, call.dim(0)), /*expected=*/false);
}

/// Of positions one rank has the one that is asked for, and brings it to all.
void select(Call& call) {
  const Value x = call.value(0);
  const int64_t dim = call.dimension(1, x.dim()), all = x.size(dim);
  const bool positions = of_positions(x, dim) && !shows_parameter(call.tensor(0));
  const int64_t asked = call.integer(2), at = asked < 0 ? asked + all : asked;
  if (!positions || all == 1 || at < 0 || at >= all) return take_elements(call, dim, positions);
  const at::Tensor whole = placed_impl(call.tensor(0)) ? call.tensor(0) : wrap(x);
  call.result_plain(whole.slice(dim, at, at + 1).select(dim, 0));  // which enter the door
}

}  // namespace

void add_slice_rules(RuleTable& table) {
  table.add({"aten::split.Tensor", "aten::unsafe_split.Tensor"}, split);
  table.add({"aten::split_with_sizes", "aten::unsafe_split_with_sizes", "aten::split.sizes"},
            split_with_sizes);
  table.add({"aten::chunk", "aten::unsafe_chunk"}, chunk);
  table.add({"aten::tensor_split.tensor_indices_or_sections"}, split_by_tensor);
  table.add({"aten::slice.Tensor"}, slice);
  table.add({"aten::glu"}, gated);
  table.add({"aten::select.int"}, select);
  table.add({"aten::unbind.int"}, unbind);
}

}  // namespace oslo
