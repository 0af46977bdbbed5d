#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <limits>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// The largest elements of a cut dimension: every rank offers its own best, with their positions in
/// the whole; the winners are picked from those. Moves `count` pairs a rank instead of all.
struct Candidates {
  at::Tensor values, indices;
};

/// The only axis that cuts `dim`; -1 when none or several do.
int cutting_axis(const Value& x, int64_t dim) {
  const Axes cutting = x.axes_cutting(dim);
  return cutting.size() == 1 ? cutting[0] : -1;
}

/// The best of this rank, the first of equals; nothing where it holds nothing.
std::tuple<at::Tensor, at::Tensor> own_best(const at::Tensor& local, int64_t dim, int64_t count,
                                            bool largest) {
  if (count != 1) return at::topk(local, count, dim, largest);
  return largest ? local.max(dim, /*keepdim=*/true) : local.min(dim, /*keepdim=*/true);
}

Candidates gather_best(const Value& x, int64_t dim, int axis, int64_t count, bool largest) {
  const c10::AutoGradMode no_grad(false);
  const auto& group = x.layout->group(axis);
  const auto& cut = (*x.layout)[axis];
  std::vector<int64_t> offered;
  for (const int64_t size : cut.cut->sizes()) offered.push_back(std::min(size, count));
  const auto [values, positions] = own_best(x.local, dim, offered[group->rank()], largest);
  const at::Tensor own = global_indices(cut, group->rank(), positions);
  const at::Tensor indices =
      own.numel() == 0 ? positions : own.index_select(0, positions.flatten()).view_as(positions);
  return {group->all_gather(values.contiguous(), dim, offered),
          group->all_gather(indices.contiguous(), dim, offered)};
}

LayoutPtr without_axis(const Value& x, int axis, int64_t removed_dim) {
  auto layout = std::make_shared<Layout>(*x.layout);
  (*layout)[axis] = {};
  for (int a = 0; a < layout->axes(); ++a) {
    if (removed_dim >= 0 && (*layout)[a].dim > removed_dim) --(*layout)[a].dim;
  }
  return layout;
}

/// argmax, argmin over one dimension; over all of them the value is gathered.
template <bool largest>
void arg_extreme(Call& call) {
  const Value x = call.value(0);
  if (call.none(1)) return call.gather("searches all elements");
  const int64_t dim = call.dimension(1, x.dim());
  const bool keep = call.boolean(2);
  const std::string own = letters(x.dim());
  std::string result = own;
  if (keep) {
    result[dim] = '-';
  } else {
    result.erase(dim, 1);
  }
  const int axis = cutting_axis(x, dim);
  if (axis < 0) return call.run({{own}, {result}, std::string(1, own[dim])});
  const Candidates best = gather_best(x, dim, axis, 1, largest);
  // The first of equals, as on one device; not-a-number wins over all.
  const at::Tensor winner = largest ? best.values.amax(dim, true) : best.values.amin(dim, true);
  const at::Tensor wins = at::logical_or(best.values.eq(winner), best.values.isnan());
  const at::Tensor index =
      best.indices.masked_fill(wins.logical_not(), std::numeric_limits<int64_t>::max())
          .amin(dim, true);
  call.result({keep ? index : index.squeeze(dim), without_axis(x, axis, keep ? -1 : dim)});
}

/// topk(self, k, dim, largest, sorted). With a gradient the dimension is gathered.
void topk(Call& call) {
  const Value x = call.value(0);
  const int64_t k = call.integer(1), dim = call.dimension(2, x.dim());
  const std::string own = letters(x.dim());
  const int axis = cutting_axis(x, dim);
  const bool records = c10::GradMode::is_enabled() && x.local.requires_grad();
  if (axis < 0 || records) return call.run({{own}, {own}, std::string(1, own[dim])});
  const Candidates best = gather_best(x, dim, axis, k, call.boolean(3));
  const auto [values, winners] = at::topk(best.values, k, dim, call.boolean(3), call.boolean(4));
  const LayoutPtr layout = without_axis(x, axis, -1);
  call.result({values, layout});
  call.result({best.indices.gather(dim, winners), layout});
}

/// max(self, dim, keepdim), min alike: values and indices along a whole dimension.
void extreme_with_index(Call& call) {
  const int64_t dims = call.dim(0);
  const std::string own = letters(dims);
  const int64_t dim = call.dimension(1, dims);
  std::string result = own;
  if (call.boolean(2)) {
    result[dim] = '-';
  } else {
    result.erase(dim, 1);
  }
  call.run({{own}, {result}, std::string(1, own[dim])});
}

}  // namespace

void add_selection_rules(RuleTable& table) {
  table.add({"aten::argmax"}, arg_extreme<true>);
  table.add({"aten::argmin"}, arg_extreme<false>);
  table.add({"aten::topk"}, topk);
  table.add({"aten::max.dim", "aten::min.dim"}, extreme_with_index);
}

}  // namespace oslo
