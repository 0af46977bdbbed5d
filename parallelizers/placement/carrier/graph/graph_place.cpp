#include "parallelizers/placement/carrier/graph/graph_place.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <typeinfo>
#include <utility>

#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/graph/front_nodes.h"
#include "parallelizers/placement/carrier/graph/gathered_view.h"

namespace oslo {

using torch::autograd::AutogradMeta;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

const Node* history_of(const at::Tensor& local) {
  return torch::autograd::impl::gradient_edge(local).function.get();
}

at::Tensor tensor_of(PlacedTensorImpl& impl) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&impl));
}

/// A view of gathered elements whose base was written: they are no longer those of the base.
bool views_what_was_written(const PlacedTensorImpl& impl) {
  return impl.gathered_view() && impl.gathered_view()->of->stale();
}

/// Of a tensor that is about to get another history. As in LibTorch, hooks stay with the tensor as
/// it was, and a retained gradient is that of the tensor as it is: whether one is to be kept.
bool leave_hooks(AutogradMeta& meta) {
  meta.hooks_.clear();
  meta.cpp_hooks_list_ = nullptr;
  if (meta.retains_grad_) meta.grad_fn_->pop_retains_grad_hook(meta.output_nr_);
  return std::exchange(meta.retains_grad_, false);
}

/// Gives `local` a history that leads to `place`, of a placed tensor in `layout`.
NodePtr bridge(const at::Tensor& local, const LayoutPtr& layout, Edge place) {
  const auto node = make_node<BridgeNode>(layout);
  node->add_next_edge(std::move(place));
  node->add_input_metadata(local);
  if (local.grad_fn() != nullptr) leave_hooks(*torch::autograd::impl::get_autograd_meta(local));
  torch::autograd::impl::set_gradient_edge(local, Edge(node, 0));
  return node;
}

}  // namespace

/// Keeps the gradient of a tensor that left its front: LibTorch takes this hook from there to the
/// node of a user's autograd::Function that has written the tensor (`mark_dirty`).
struct KeepGradient final : torch::autograd::FunctionPreHook {
  explicit KeepGradient(PlacedTensorImpl& impl)
      : of(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&impl)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (const auto alive = of.lock()) {
      GraphPlace& place = GraphPlace::of(static_cast<PlacedTensorImpl&>(*alive));
      if (place.state() != GraphPlace::State::front) {
        place.add_gradient(gradients[place.output_nr_]);
      }
    }
    return gradients;
  }

  c10::weak_intrusive_ptr<c10::TensorImpl> of;
};

void GraphPlace::give(PlacedTensorImpl& impl) {
  if (impl.is_inference()) return;  // no graph leads to it, ever
  std::unique_ptr<GraphPlace> place(new GraphPlace(impl));
  place->pending_ = impl.unfinished().local.requires_grad();
  impl.set_autograd_meta(std::move(place));
}

GraphPlace& GraphPlace::of(const PlacedTensorImpl& impl) {
  c10::AutogradMetaInterface* const meta = impl.autograd_meta();
  if (meta != nullptr && typeid(*meta) == typeid(GraphPlace)) {
    return *static_cast<GraphPlace*>(meta);
  }
  return take_over(const_cast<PlacedTensorImpl&>(impl));
}

/// Copies that LibTorch makes (`variable_data()`, what a user's autograd::Function saved) have none
/// of ours; nobody else has them yet when they are first used.
GraphPlace& GraphPlace::take_over(PlacedTensorImpl& impl) {
  std::unique_ptr<GraphPlace> place(new GraphPlace(impl));
  if (impl.autograd_meta() != nullptr) {
    auto& before = *static_cast<AutogradMeta*>(impl.autograd_meta());
    place->name_ = std::move(before.name_);
    place->grad_ = std::move(before.grad_);
    place->grad_fn_ = std::move(before.grad_fn_);
    place->grad_accumulator_ = std::move(before.grad_accumulator_);
    place->hooks_ = std::move(before.hooks_);
    place->cpp_hooks_list_ = std::move(before.cpp_hooks_list_);
    place->post_acc_grad_hooks_ = std::move(before.post_acc_grad_hooks_);
    place->requires_grad_ = before.requires_grad_;
    place->retains_grad_ = before.retains_grad_;
    place->output_nr_ = before.output_nr_;
    place->grad_dtype_ = before.grad_dtype_;
    place->allow_grad_dtype_mismatch_ = before.allow_grad_dtype_mismatch_;
  }
  GraphPlace& taken = *place;
  impl.set_autograd_meta(std::move(place));
  return taken;
}

GraphPlace::State GraphPlace::current() const {
  if (grad_fn_ == nullptr) {
    return pending_ ? State::pending : requires_grad_ ? State::leaf : State::none;
  }
  if (node_ == nullptr) return State::own;
  if (!bridges_) return grad_fn_ == node_ ? State::front : State::own;
  return grad_fn_ == node_->next_edge(0).function ? State::bridged : State::own;
}

GraphPlace::State GraphPlace::state() const {
  const std::lock_guard<std::mutex> lock(lock_);
  return current();
}

bool GraphPlace::stands_elsewhere() const {
  const State now = state();
  return now == State::own || now == State::bridged || now == State::leaf;
}

bool GraphPlace::at_local() const {
  const bool follows = follows_base(*this) || (views_leaf() && is_adopted(leaf_));
  return !stands_elsewhere() && !follows;
}

bool GraphPlace::outdated() const {
  const State now = current();
  if (now == State::none || now == State::leaf) return false;
  if (views_what_was_written(of_)) return true;
  if (now != State::front && now != State::bridged) return false;
  const Node* const given = bridges_ ? node_.get() : node_->next_edge(0).function.get();
  return history_of(local()) != given;
}

void GraphPlace::renew() {
  const at::Tensor placed = tensor_of(of_);
  auto front =
      make_node<FrontNode>(of_.value().layout, torch::autograd::impl::gradient_edge(local()),
                           views_what_was_written(of_));
  front->add_input_metadata(placed.options(), placed.sym_sizes(), /*is_tensor_subclass=*/false,
                            /*is_nested=*/false, placed.scalar_type());
  const bool keeps = leave_hooks(*this);
  node_ = front;
  bridges_ = false;
  grad_fn_ = std::move(front);
  output_nr_ = 0;
  if (keeps) keep_gradient();
  pending_.store(false, std::memory_order_release);
}

void GraphPlace::settle_locked() {
  if (pending_ && grad_fn_) {
    // A user's autograd::Function has returned the tensor as its own.
    pending_.store(false, std::memory_order_release);
  } else if (pending_ || outdated()) {
    renew();
  }
  if (of_.value().layout->resident() && current() == State::own) {
    note_layout(*grad_fn_, output_nr_, of_.value().layout);
  }
}

void GraphPlace::settle() {
  const std::lock_guard<std::mutex> lock(lock_);
  settle_locked();
}

at::Tensor GraphPlace::bridged_local() {
  if (state() == State::leaf) {
    // Its accumulator holds it, so that it must not hold what leads there; and it is not written.
    const BelowDoor below;
    at::Tensor alias = local().detach();
    bridge(alias, of_.value().layout, torch::autograd::impl::gradient_edge(tensor_of(of_)));
    return alias;
  }
  const std::lock_guard<std::mutex> lock(lock_);
  settle_locked();
  // The local tensor itself, not an alias of it: then LibTorch knows what a write to one of its
  // views means for the others.
  if (current() == State::own) {
    check_one_stage(*grad_fn_, *of_.value().layout);
    node_ = bridge(local(), of_.value().layout, Edge(grad_fn_, output_nr_));
    bridges_ = true;
  }
  return local();
}

void GraphPlace::follow_local() {
  if (!local().requires_grad()) return;
  const std::lock_guard<std::mutex> lock(lock_);
  switch (current()) {
    case State::none:
      pending_ = true;
      break;
    case State::pending:
      break;
    case State::front:
    case State::bridged:
      if (outdated()) renew();
      break;
    case State::own:
    case State::leaf:
      // A write that was not recorded leaves a place of the tensor's own, as on one device.
      if (c10::GradMode::is_enabled()) renew();
      break;
  }
}

void GraphPlace::replace_value(Value value) {
  const at::Tensor before = local();
  const bool keeps_gradient =
      before.retains_grad() && !value.local.is_same(before) && value.local.requires_grad();
  of_.set_value(std::move(value));
  if (keeps_gradient) local().retain_grad();
  follow_local();
  if (const at::Tensor viewed = base(); viewed.defined()) of(*placed_impl(viewed)).follow_local();
}

void GraphPlace::unbridge() {
  const std::lock_guard<std::mutex> lock(lock_);
  if (bridges_) node_ = nullptr;
  bridges_ = false;
}

void GraphPlace::leave_graph() {
  {
    const BelowDoor below;
    of_.set_value({local().detach(), of_.value().layout});
  }
  const std::lock_guard<std::mutex> lock(lock_);
  node_ = nullptr;
  bridges_ = false;
  requires_grad_ = false;
  grad_fn_ = nullptr;
  output_nr_ = 0;
  pending_ = false;
}

const at::Tensor* GraphPlace::watched_local() {
  const std::lock_guard<std::mutex> lock(lock_);
  settle_locked();
  return current() == State::front ? &local() : nullptr;
}

void GraphPlace::keep_gradient() {
  local().retain_grad();
  retains_grad_ = true;
  grad_fn_->add_retains_grad_hook(std::make_unique<KeepGradient>(of_), 0);
}

void GraphPlace::retain_gradient() {
  const std::lock_guard<std::mutex> lock(lock_);
  if (!local().retains_grad()) keep_gradient();
}

bool GraphPlace::is_watched() const {
  if (stands_elsewhere()) return true;
  const AutogradMeta* const meta = torch::autograd::impl::get_autograd_meta(local());
  return meta != nullptr && (meta->retains_grad_ || !meta->hooks_.empty());
}

at::Tensor GraphPlace::base() const {
  if (base_._unsafe_get_target() == nullptr) return {};
  auto alive = base_.lock();
  return alive ? at::Tensor(std::move(alive)) : at::Tensor();
}

void GraphPlace::set_base(const at::Tensor& base) {
  const GraphPlace* const place = find(*placed_impl(base));
  const at::Tensor root = place != nullptr ? place->base() : at::Tensor();
  base_ = (root.defined() ? root : base).getIntrusivePtr();
}

at::Tensor& GraphPlace::mutable_grad() {
  if (state() != State::front || !local().retains_grad()) return grad_;
  at::Tensor& retained = local().mutable_grad();
  if (retained.defined()) add_gradient(wrap({std::exchange(retained, {}), of_.value().layout}));
  return grad_;
}

void GraphPlace::add_gradient(const at::Tensor& gradient) {
  grad_ = grad_.defined() ? grad_ + gradient : gradient;
}

bool follows_base(const GraphPlace& place) {
  const at::Tensor base = place.base();
  if (!base.defined()) return false;
  const GraphPlace* const of = GraphPlace::find(*placed_impl(base));
  return of != nullptr && of->state() == GraphPlace::State::own;
}

}  // namespace oslo
