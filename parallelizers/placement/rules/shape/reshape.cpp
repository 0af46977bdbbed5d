#include <ATen/ATen.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include <map>
#include <optional>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/door/initializer_guard.h"
#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/layout/cuts/cut_requests.h"
#include "parallelizers/placement/layout/memory_order.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

using Sizes = at::DimVector;

int64_t product(c10::IntArrayRef sizes, int64_t begin, int64_t end) {
  int64_t result = 1;
  for (int64_t d = begin; d < end; ++d) result *= sizes[d];
  return result;
}

/// A stretch of old dimensions and the stretch of new ones that holds the same elements.
struct Segment {
  int64_t old_begin, old_end, new_begin, new_end;
};

Segment segment_of(c10::IntArrayRef old_sizes, c10::IntArrayRef new_sizes, int64_t dim) {
  int64_t i = 0, j = 0;
  const auto old_dims = static_cast<int64_t>(old_sizes.size());
  const auto new_dims = static_cast<int64_t>(new_sizes.size());
  while (true) {
    Segment segment{i, i, j, j};
    int64_t left = 1, right = 1;
    do {
      if (left <= right && i < old_dims) {
        left *= old_sizes[i++];
      } else if (j < new_dims) {
        right *= new_sizes[j++];
      } else {
        left *= old_sizes[i++];
      }
    } while (left != right);
    while (i < old_dims && old_sizes[i] == 1) ++i;
    while (j < new_dims && new_sizes[j] == 1) ++j;
    segment.old_end = i;
    segment.new_end = j;
    if (dim < i) return segment;
  }
}

/// The cut of the segment's elements, laid out one after the other, as the cut of one of its new
/// dimensions: whole multiples of what lies inside it, repeated for what lies outside.
std::optional<Layout::AxisCut> cut_of_new(const CutPtr& flat_cut, const Segment& segment,
                                          c10::IntArrayRef sizes, c10::IntArrayRef global) {
  const Cut& flat = *flat_cut;
  if (product(global, segment.new_begin, segment.new_end) == 1 && flat.size() == 1 &&
      segment.new_begin < segment.new_end) {
    return Layout::AxisCut{segment.new_begin, flat_cut};  // one element, on one of the ranks
  }
  const bool single = flat.runs().size() == 1;
  const int64_t repeat = single ? flat.runs().front().repeat : 1;
  int64_t unit_wanted = 1;
  for (int64_t d = segment.new_end - 1; d >= segment.new_begin; --d) {
    const int64_t outer = product(sizes, segment.new_begin, d);
    if (global[d] == 1 || repeat % outer != 0) continue;
    const int64_t inner = product(sizes, d + 1, segment.new_end);
    CutPtr cut = flat.divided(inner);
    if (!cut) {
      if (unit_wanted == 1) unit_wanted = inner;  // the smallest
      continue;
    }
    if (single) {
      cut = std::make_shared<Cut>(Cut::Runs{{repeat / outer, cut->runs().front().pieces}},
                                  cut->origin(), cut->origin_scale());
    }
    if (cut->size() == sizes[d]) return Layout::AxisCut{d, std::move(cut)};
  }
  if (unit_wanted > 1) wish_unit(flat, unit_wanted);
  return std::nullopt;
}

/// A cut of several runs (grouped query attention), flattened with the dimensions before it, has
/// all of them again in every row: with more of them than these the list would be as large as the
/// tensor, and joining its pieces slower than to gather now.
constexpr int64_t kMostRuns = 4096;

/// How the cuts of the axes `done` were carried from one shape to the other.
struct Carried {
  const Layout& from;
  const Layout& to;
  const Sizes &sizes, &target;  ///< before and after, global
  c10::ArrayRef<int> done;      ///< outer axes before those that cut inside them
};

/// What the cut of `axis` becomes on the part that `place`, a rank for each axis, leaves; none
/// where the new shape has no place for it, or where the part is nothing, which fits anywhere.
std::optional<Layout::AxisCut> carry_at(const Carried& carried, int axis, const Segment& segment,
                                        c10::ArrayRef<int> place) {
  const auto& [from, to, all, target, done] = carried;
  Sizes old_sizes = all, new_sizes = target;
  for (const int outer : done) {
    const int64_t dim = from[outer].dim;
    if (dim < segment.old_begin || dim >= segment.old_end) continue;
    old_sizes[dim] = from.cut_at(outer, place).local_size(place[outer]);
    new_sizes[to[outer].dim] = to.cut_at(outer, place).local_size(place[outer]);
    if (old_sizes[dim] == 0) return std::nullopt;
  }
  const int64_t dim = from[axis].dim;
  const Cut& cut = from.cut_at(axis, place);
  const int64_t rows = product(old_sizes, segment.old_begin, dim);
  const auto runs = static_cast<int64_t>(cut.runs().size());
  if (runs > 1 && rows > kMostRuns / runs) return std::nullopt;
  const CutPtr flat = cut.scaled(product(old_sizes, dim + 1, segment.old_end))->repeated(rows);
  return cut_of_new(flat, segment, new_sizes, target);
}

/// Goes to the next place of the axes in `moving`; false after the last.
bool next_place(c10::SmallVector<int, 2>& place, const Axes& moving, const Mesh& mesh) {
  for (auto axis = moving.rbegin(); axis != moving.rend(); ++axis) {
    if (++place[*axis] < mesh.axis(*axis)->size()) return true;
    place[*axis] = 0;
  }
  return false;
}

/// What the cut of `axis` becomes. Every rank must decide alike, though what the axes before it
/// leave differs between ranks: the new shape must have the same place for it on all of them.
std::optional<Layout::AxisCut> carry(const Carried& carried, int axis, const Segment& segment) {
  const Mesh& mesh = carried.from.mesh();
  c10::SmallVector<int, 2> here, place;
  Axes moving;  // those whose parts decide
  for (int each = 0; each < mesh.axes(); ++each) here.push_back(mesh.axis(each)->rank());
  for (const int outer : carried.done) {
    const int64_t dim = carried.from[outer].dim;
    if (dim >= segment.old_begin && dim < segment.old_end) moving.push_back(outer);
  }
  const auto own = carry_at(carried, axis, segment, here);
  if (moving.empty()) return own;
  place = here;
  for (const int outer : moving) place[outer] = 0;
  int64_t dim = -1;
  std::map<std::vector<int>, CutPtr>
      family;  // by the ranks of the axes that cut the same dimension
  do {
    const auto found = carry_at(carried, axis, segment, place);
    if (!found || (dim >= 0 && dim != found->dim)) return std::nullopt;
    dim = found->dim;
    std::vector<int> inside;
    for (const int outer : moving) {
      if (carried.to[outer].dim == dim) inside.push_back(place[outer]);
    }
    const auto [known, fresh] = family.emplace(std::move(inside), found->cut);
    if (!fresh && !(*known->second == *found->cut)) return std::nullopt;
  } while (next_place(place, moving, mesh));
  if (family.begin()->first.empty()) return Layout::AxisCut{dim, own->cut->among({})};
  Cut::Family cuts;
  for (const auto& [_, cut] : family) cuts.push_back(cut);
  return Layout::AxisCut{dim, own->cut->among(std::move(cuts))};
}

struct Reshaped {
  Value value;
  std::optional<Value> held;  ///< what x became, if it had to be gathered
};

/// Carries the cuts over, axis by axis; gathers where the new shape has no place for one.
Reshaped reshape_value(Value x, c10::IntArrayRef wanted) {
  Reshaped done;
  const auto global = x.sizes();
  const Sizes target = at::infer_size_dv(wanted, product(global, 0, x.dim()));
  const ContextPtr context = x.layout->context();
  while (true) {
    const Sizes all(x.sizes());
    Sizes new_sizes = target;
    Layout layout(context);
    int failed = -1;
    const Axes order = x.layout->nesting();
    for (size_t i = 0; i < order.size(); ++i) {
      const int axis = order[i];
      const auto& [dim, cut] = (*x.layout)[axis];
      if (dim < 0) continue;
      std::optional<Layout::AxisCut> placed;
      if (product(all, 0, x.dim()) > 0) {
        const auto done = c10::ArrayRef<int>(order).slice(0, i);
        placed = carry({*x.layout, layout, all, target, done}, axis, segment_of(all, target, dim));
      }
      if (!placed) {
        failed = axis;
        break;
      }
      new_sizes[placed->dim] = placed->cut->local_size(context->mesh().axis(axis)->rank());
      layout[axis] = std::move(*placed);
    }
    if (failed < 0) {
      done.value = {at::reshape(x.local, new_sizes), std::make_shared<const Layout>(layout)};
      return done;
    }
    const auto& [dim, cut] = (*x.layout)[failed];
    const std::string reason =
        c10::str("dimension ", dim, " of ", global.size(), " to ", target.size(),
                 " dimensions needs it cut in other units",
                 cut->origin() ? " (from " + cut->origin()->parameter + ")" : "");
    announce_gather(x, RuleScope::current(), reason);
    context->gathers().record(RuleScope::current(), reason,
                              x.local.numel() * static_cast<int64_t>(x.local.element_size()));
    x = gather_axis(std::move(x), failed);
    done.held = x;
  }
}

/// What one device makes a copy of must be none of ours either: a rank with few elements may have
/// got a view of `of`.
Value copied(Value value, const at::Tensor& of) {
  if (value.local.is_alias_of(of)) value.local = value.local.clone(at::MemoryFormat::Contiguous);
  return value;
}

void finish_reshape(Call& call, c10::IntArrayRef wanted, bool always_view = false) {
  const Value x = call.value(0);
  if (!x.layout) {  // a marked tensor that is whole
    call.result({at::reshape(x.local, wanted), nullptr});
    return;
  }
  const at::Tensor tensor = call.tensor(0);
  const PlacedTensorImpl* impl = placed_impl(tensor);
  Reshaped done = reshape_value(x, wanted);
  const bool view = impl == nullptr || always_view ||
                    at::detail::computeStride(tensor.sizes(), tensor.strides(),
                                              at::infer_size_dv(wanted, tensor.numel()))
                        .has_value();
  if (!view) return call.result_plain(call.placed(copied(std::move(done.value), x.local)));
  const bool of_gathered = impl != nullptr && impl->gathered_view();
  call.result(std::move(done.value), done.held ? &*done.held : of_gathered ? &x : nullptr);
}

/// contiguous(self, memory_format): itself, or a copy.
void contiguous(Call& call) {
  const Value x = call.value(0);
  const at::Tensor tensor = call.tensor(0);
  const at::MemoryFormat format = call.argument(1).toMemoryFormat();
  if (placed_impl(tensor) == nullptr) return call.result({x.local.contiguous(format), x.layout});
  if (tensor.is_contiguous(format)) return call.result_plain(tensor);
  const at::Tensor whole =
      at::empty(tensor.sizes(), x.local.options().device(at::kMeta).memory_format(format));
  at::Tensor part = in_order_of(x.local.clone(format), whole.sizes(), whole.strides());
  call.result_plain(wrap_view({std::move(part), x.layout}, whole.strides()));
}

void reshape(Call& call) {
  finish_reshape(call, call.integers(1));
}

void view(Call& call) {
  finish_reshape(call, call.integers(1), /*always_view=*/true);
}

/// view_as(self, other). A parameter stands for the whole that it is a part of, though it says that
/// it has the sizes of the part: who cut `self` by those is told.
void view_as(Call& call) {
  // What torch::nn::init::orthogonal_ computes for a part it writes to this view.
  if (!is_placed(call.tensor(1)) && call.tensor(1).numel() == call.tensor(0).numel()) {
    refuse_initializers_of_parts(call.tensor(0));
  }
  const Value self = call.value(0), other = call.value(1);
  const int64_t given = c10::multiply_integers(self.sizes());
  const int64_t wanted = c10::multiply_integers(other.sizes());
  const Mark* mark = mark_of(call.tensor(1));
  // A rank whose part is everything would cut by the right sizes: refused on all of them.
  if (mark != nullptr && (given != wanted || mark->layout->all_on_one_rank())) {
    fail("view_as: a tensor of ", given, " elements cannot take the shape ",
         c10::IntArrayRef(other.sizes()), " of parallel parameter ", mark->name,
         ", of which a rank ",
         "holds a part; code that flattens parameters by their numel(), such as ",
         "torch::optim::LBFGS, does not work with parameters that are cut over ranks: choose an "
         "optimizer that works parameter by parameter (Adam, AdamW, SGD, RMSprop, Adagrad)");
  }
  call.result_plain(call.tensor(0).view(other.sizes()));
}

void flatten(Call& call) {
  const Value x = call.value(0);
  const auto sizes = x.sizes();
  if (x.dim() == 0) return finish_reshape(call, {1});
  const int64_t first = call.dimension(1, x.dim()), last = call.dimension(2, x.dim());
  if (first > last) throw ShapeMismatch("flatten: the first dimension comes after the last");
  std::vector<int64_t> wanted(sizes.begin(), sizes.begin() + first);
  wanted.push_back(product(sizes, first, last + 1));
  wanted.insert(wanted.end(), sizes.begin() + last + 1, sizes.end());
  finish_reshape(call, wanted);
}

}  // namespace

void add_reshape_rules(RuleTable& table) {
  table.add({"aten::view"}, view);
  table.add({"aten::view_as"}, view_as);
  table.add({"aten::reshape", "aten::_unsafe_view"}, reshape);
  table.add({"aten::flatten.using_ints"}, flatten);
  table.add({"aten::contiguous"}, contiguous);
}

}  // namespace oslo
