#include "parallelizers/placement/engine/joined_sum.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

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

at::Tensor on_one_rank(const at::Tensor& whole, const Value& sum) {
  const bool here = sum.layout->group(sum.partial->axis)->rank() == 0;
  if (whole.requires_grad()) return OnOneRank::apply(whole, here);
  return here ? whole : at::zeros({}, whole.options()).expand(whole.sizes());
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

/// The partial sum that an operand is, if it may be used as it is: where nobody gave it a place of
/// its own in the graph, on the stages of the call. Null otherwise.
const PlacedTensorImpl* usable(const Call& call, size_t i) {
  PlacedTensorImpl* const impl = call.is_tensor(i) ? placed_impl(call.tensor(i)) : nullptr;
  if (impl == nullptr || !impl->partial()) return nullptr;
  if (!(impl->layout()->stages() == call.place().stages) || call.place().on_zeros) return nullptr;
  const GraphPlace* const place = GraphPlace::find(*impl);
  return place == nullptr || place->at_local() ? impl : nullptr;
}

bool is_partial(const Call& call, size_t i) {
  const PlacedTensorImpl* const impl = call.is_tensor(i) ? placed_impl(call.tensor(i)) : nullptr;
  return impl != nullptr && impl->partial();
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

/// The sum of what `locals` are on this rank.
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
bool run_beside_whole(Call& call, const Value& sum, bool first) {
  if (call.op().in_place && !first) return false;
  const Value whole = call.value(first ? 1 : 0);
  if (!joins_whole(sum, whole)) return false;
  const at::Tensor once = on_one_rank(whole.local, sum);
  give(call, first ? added(call, sum, sum.local, once) : added(call, sum, once, sum.local));
  return true;
}

bool run_dropout(Call& call) {
  const PlacedTensorImpl* const sum = usable(call, 0);
  if (sum == nullptr || (call.boolean(2) && call.number(1) != 0)) return false;
  call.result(sum->unfinished());
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
  if (!is_partial(call, 0) && !is_partial(call, 1)) return false;
  if (call.op().schema->name() == "aten::dropout") return run_dropout(call);
  const PlacedTensorImpl *const left = usable(call, 0), *const right = usable(call, 1);
  if (left != nullptr && right != nullptr && left != right) {
    return run_both(call, left->unfinished(), right->unfinished());
  }
  if (left != nullptr && !is_partial(call, 1))
    return run_beside_whole(call, left->unfinished(), true);
  if (right != nullptr && !is_partial(call, 0)) {
    return run_beside_whole(call, right->unfinished(), false);
  }
  return false;
}

}  // namespace oslo
