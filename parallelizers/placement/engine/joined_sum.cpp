#include "parallelizers/placement/engine/joined_sum.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>

#include "parallelizers/placement/carrier/graph/graph_place.h"

namespace oslo {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The tensor itself on one rank, zeros on the others; backward every rank has the whole gradient,
/// as it has of any value that all of them hold.
struct OnOneRank : public torch::autograd::Function<OnOneRank> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& whole, bool here) {
    if (here) return whole.view_as(whole);
    return at::zeros({}, whole.options()).expand(whole.sizes());
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

/// A rank's addend of a sum, and the rank's part of a value that lies as the sum will: added where
/// it stands in the whole.
struct InOwnPlace : public torch::autograd::Function<InOwnPlace> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& addend,
                            const at::Tensor& part, int64_t dim, int64_t start) {
    context->saved_data["dim"] = dim;
    context->saved_data["start"] = start;
    context->saved_data["size"] = part.size(dim);
    const at::ScalarType type = at::result_type(addend, part);
    at::Tensor sum = addend.to(type, /*non_blocking=*/false, /*copy=*/true);
    sum.narrow(dim, start, part.size(dim)).add_(part);
    return sum;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    return {gradients[0], gradients[0].narrow(number("dim"), number("start"), number("size")),
            at::Tensor(), at::Tensor()};
  }
};

at::Tensor in_own_place(const Value& sum, const at::Tensor& part) {
  const auto& [dim, cut] = sum.partial->after;
  const int rank = sum.layout->group(sum.partial->axis)->rank();
  const auto before = c10::IntArrayRef(cut->sizes()).slice(0, rank);
  const int64_t start = std::accumulate(before.begin(), before.end(), int64_t{0});
  return InOwnPlace::apply(sum.local, part, dim, start);
}

at::Tensor on_one_rank(const at::Tensor& whole, const Value& sum) {
  const bool here = sum.layout->group(sum.partial->axis)->rank() == 0;
  return OnOneRank::apply(whole, here);
}

bool stretches_to(const Value& small, const Value& large) {
  const auto own = small.sizes(), all = large.sizes();
  if (own.size() > all.size()) return false;
  for (size_t d = 1; d <= own.size(); ++d) {
    const int64_t size = own[own.size() - d];
    if (size != 1 && size != all[all.size() - d]) return false;
  }
  return true;
}

/// The operand, where it is a partial sum; null otherwise.
const PlacedTensorImpl* sum_at(const Call& call, size_t i) {
  const PlacedTensorImpl* const impl = call.is_tensor(i) ? placed_impl(call.tensor(i)) : nullptr;
  return impl != nullptr && impl->partial() ? impl : nullptr;
}

/// Whether it may be used as it is: nobody gave it a place of its own in the graph, and it is on
/// the stages of the call.
bool usable(const Call& call, const PlacedTensorImpl& sum) {
  if (!(sum.layout()->stages() == call.place().stages) || call.place().on_zeros) return false;
  const GraphPlace* const place = GraphPlace::find(sum);
  return place == nullptr || place->at_local();
}

/// Two sums that wait, of one shape and layout. Their types may differ, as of any two summands.
bool join(const Value& left, const Value& right) {
  return left.partial->joins(*right.partial) && left.sizes() == right.sizes() &&
         *left.layout == *right.layout;
}

/// Gives the first operand, in whose place the sum stands, or a new tensor.
void give(Call& call, Value sum) {
  if (sum.partial->complete()) sum = end_sum(std::move(sum));
  if (!call.op().in_place) return call.result(std::move(sum));
  const at::Tensor target = call.tensor(0);
  PlacedTensorImpl& impl = *placed_impl(target);
  if (!impl.is_inference()) impl.bump_version();
  impl.set_value(std::move(sum));
  if (GraphPlace* const place = GraphPlace::find(impl)) place->follow_sum();
  call.result_plain(target);
}

/// What the two are together on this rank, as a value like `like`.
Value added(const Call& call, const Value& like, at::Tensor left, at::Tensor right) {
  Value sum = like;
  if (call.op().in_place) {  // out of place: the target was nothing's memory but its own
    const at::ScalarType type = like.local.scalar_type();
    sum.local = at::add(left, right, call.argument(2).toScalar()).to(type);
  } else {
    sum.local = call.call_below({std::move(left), std::move(right)})[0].toTensor();
  }
  return sum;
}

bool run_both(Call& call, const Value& left, const Value& right) {
  if (!join(left, right)) return false;
  Value sum = added(call, left, left.local, right.local);
  sum.partial = std::make_shared<const PartialSum>(left.partial->with(*right.partial));
  give(call, std::move(sum));
  return true;
}

/// `first`: which operand is the sum.
/// Whether `part` is this rank's of a value of the same shape that is cut as the sum will be, and
/// may be added before.
bool joins_part(const Call& call, const Value& sum, const Value& part) {
  if (sum.partial->after.whole() || !sum.partial->after.cut->contiguous()) return false;
  return part.cut() && *part.layout == *ended_layout(sum) && part.sizes() == sum.sizes() &&
         at::isFloatingType(part.local.scalar_type()) &&
         part.local.device() == sum.local.device() && call.argument(2).toScalar().equal(1);
}

bool run_beside_whole(Call& call, const Value& sum, bool first) {
  if (call.op().in_place && !first) return false;
  const Value whole = call.value(first ? 1 : 0);
  if (joins_part(call, sum, whole)) {
    Value added = sum;
    added.local = in_own_place(sum, whole.local);
    if (call.op().in_place) added.local = added.local.to(sum.local.scalar_type());
    give(call, std::move(added));
    return true;
  }
  if (!joins_whole(sum, whole)) return false;
  const at::Tensor once = on_one_rank(whole.local, sum);
  give(call, first ? added(call, sum, sum.local, once) : added(call, sum, once, sum.local));
  return true;
}

bool run_dropout(Call& call, const PlacedTensorImpl& sum) {
  if (call.boolean(2) && call.number(1) != 0) return false;
  call.result(sum.unfinished());
  return true;
}

}  // namespace

bool joins_whole(const Value& sum, const Value& whole) {
  const bool alike = !whole.cut() ? sum.layout->whole() : *whole.layout == *sum.layout;
  return alike && at::isFloatingType(whole.local.scalar_type()) &&
         whole.local.device() == sum.local.device() && stretches_to(whole, sum);
}

Value add_to_sum(const Value& sum, const Value& whole, const at::Scalar& alpha) {
  Value added = sum;
  added.local =
      at::add(sum.local, on_one_rank(whole.local, sum), alpha).to(sum.local.scalar_type());
  return added;
}

bool run_joined(Call& call) {
  const PlacedTensorImpl *const left = sum_at(call, 0), *const right = sum_at(call, 1);
  if (left == nullptr && right == nullptr) return false;
  if ((left != nullptr && !usable(call, *left)) || (right != nullptr && !usable(call, *right))) {
    return false;
  }
  if (call.op().schema->name() == "aten::dropout") return run_dropout(call, *left);
  if (left == right) return false;
  if (left == nullptr) return run_beside_whole(call, right->unfinished(), /*first=*/false);
  if (right == nullptr) return run_beside_whole(call, left->unfinished(), /*first=*/true);
  return run_both(call, left->unfinished(), right->unfinished());
}

}  // namespace oslo
