#include "parallelizers/placement/carrier/front.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "mpu/error.h"

namespace oslo {
namespace {

using torch::autograd::AutogradMeta;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// From the gradient of a placed tensor to that of its local tensor.
class FrontNode final : public Node {
 public:
  /// Numbered like the node that it leads to, which every rank has: when somebody looked, on this
  /// rank perhaps alone, has no part in the order of the backward pass.
  /// `written_since`: for a view of gathered elements, which it was made for too late.
  FrontNode(LayoutPtr layout, Edge edge, bool written_since)
      : Node(edge.function ? edge.function->sequence_nr() : 0, {edge}),
        layout_(std::move(layout)),
        written_since_(written_since) {}

  std::string name() const override { return "OsloPlaced"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    OSLO_CHECK(!written_since_,
               "the gradient of a view that had to be gathered was asked for after the tensor that "
               "it views was written; take it through an operator on the view (such as clone())");
    return {local_in(std::move(gradients[0]), layout_)};
  }

 private:
  LayoutPtr layout_;
  bool written_since_;
};

/// From the gradient of a local tensor to that of the placed tensor around it.
class BridgeNode final : public Node {
 public:
  explicit BridgeNode(LayoutPtr layout) : layout_(std::move(layout)) {}

  std::string name() const override { return "OsloBridge"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {wrap({gradients[0], layout_})};
  }

 private:
  LayoutPtr layout_;
};

/// What LibTorch keeps of a placed tensor with a gradient, before its node is made and after. Hooks
/// and a retained gradient are those of the local tensor.
struct FrontMeta final : AutogradMeta {
  explicit FrontMeta(PlacedTensorImpl& placed) : of(placed) {}

  bool requires_grad() const override {
    return pending.load(std::memory_order_acquire) || AutogradMeta::requires_grad();
  }
  const at::Tensor& grad() const override { return const_cast<FrontMeta*>(this)->mutable_grad(); }
  /// With what the local tensor has retained since the last look.
  at::Tensor& mutable_grad() override {
    if (!grad_fn_ || grad_fn_ != of.front() || !of.value().local.retains_grad()) return grad_;
    at::Tensor& retained = of.value().local.mutable_grad();
    if (retained.defined()) add(wrap({std::exchange(retained, {}), of.value().layout}));
    return grad_;
  }
  void add(const at::Tensor& gradient) { grad_ = grad_.defined() ? grad_ + gradient : gradient; }

  PlacedTensorImpl& of;
  std::atomic<bool> pending{true};
};

AutogradMeta* meta_of(const PlacedTensorImpl& impl) {
  return static_cast<AutogradMeta*>(impl.autograd_meta());
}

/// Null where there is none, or LibTorch's own stands.
FrontMeta* front_meta(const PlacedTensorImpl& impl) {
  AutogradMeta* const meta = meta_of(impl);
  return meta != nullptr && typeid(*meta) == typeid(FrontMeta) ? static_cast<FrontMeta*>(meta)
                                                               : nullptr;
}

bool is_pending(const FrontMeta* meta) {
  return meta != nullptr && meta->pending.load(std::memory_order_acquire);
}

/// Puts ours in the place of LibTorch's, with all that a tensor in the graph has there.
void adopt_meta(PlacedTensorImpl& impl) {
  if (front_meta(impl) != nullptr) return;
  AutogradMeta& before = *meta_of(impl);
  auto meta = std::make_unique<FrontMeta>(impl);
  meta->pending = false;
  meta->name_ = std::move(before.name_);
  meta->grad_ = std::move(before.grad_);
  meta->grad_fn_ = std::move(before.grad_fn_);
  meta->hooks_ = std::move(before.hooks_);
  meta->cpp_hooks_list_ = std::move(before.cpp_hooks_list_);
  meta->requires_grad_ = before.requires_grad_;
  meta->retains_grad_ = before.retains_grad_;
  meta->output_nr_ = before.output_nr_;
  impl.set_autograd_meta(std::move(meta));
}

bool views_what_was_written(const PlacedTensorImpl& impl) {
  return impl.gathered_view() && impl.gathered_view()->of->stale();
}

const Node* history_of(const at::Tensor& local) {
  return torch::autograd::impl::gradient_edge(local).function.get();
}

const Node* place_of(const PlacedTensorImpl& impl) {
  return impl.autograd_meta() == nullptr ? nullptr : meta_of(impl)->grad_fn_.get();
}

bool stands_on_front(const PlacedTensorImpl& impl) {
  return impl.front() != nullptr && place_of(impl) == impl.front().get();
}

bool is_attached(const PlacedTensorImpl& impl) {
  return impl.bridge() && impl.bridge()->next_edge(0).function.get() == place_of(impl);
}

/// Whether its place in the graph is that of the tensor before a write, to it or to what shares its
/// memory: LibTorch has then given the local tensor another history.
bool is_outdated(const PlacedTensorImpl& impl) {
  if (views_what_was_written(impl)) return true;
  const Node* const given = is_attached(impl)       ? impl.bridge().get()
                            : stands_on_front(impl) ? impl.front()->next_edge(0).function.get()
                                                    : nullptr;
  return given != nullptr && history_of(impl.value().local) != given;
}

std::shared_ptr<Node> make_front(const at::Tensor& placed) {
  // Not deleted by `deleteNode`, which guards against the recursion of deep graphs: no node of the
  // graph proper leads to a front but a bridge, and bridges are deleted by it.
  const PlacedTensorImpl& impl = *placed_impl(placed);
  auto node = std::make_shared<FrontNode>(impl.value().layout,
                                          torch::autograd::impl::gradient_edge(impl.value().local),
                                          views_what_was_written(impl));
  node->add_input_metadata(placed.options(), placed.sym_sizes(), /*is_tensor_subclass=*/false,
                           /*is_nested=*/false, placed.scalar_type());
  return node;
}

/// Of a tensor that is about to get another history. As in LibTorch, hooks stay with the tensor as
/// it was, and a retained gradient is that of the tensor as it is: whether one is to be kept.
bool leave_hooks(AutogradMeta& meta) {
  meta.hooks_.clear();
  meta.cpp_hooks_list_ = nullptr;
  if (meta.retains_grad_) meta.grad_fn_->pop_retains_grad_hook(meta.output_nr_);
  return std::exchange(meta.retains_grad_, false);
}

/// Keeps the gradient of a tensor that left its front: LibTorch takes this hook from there to the
/// node of a user's autograd::Function that has written the tensor (`mark_dirty`).
struct KeepGradient final : torch::autograd::FunctionPreHook {
  explicit KeepGradient(PlacedTensorImpl& impl)
      : of(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(&impl)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (const auto alive = of.lock()) {
      auto& impl = static_cast<PlacedTensorImpl&>(*alive);
      FrontMeta* const meta = front_meta(impl);
      if (meta != nullptr && !stands_on_front(impl)) meta->add(gradients[meta->output_nr_]);
    }
    return gradients;
  }

  c10::weak_intrusive_ptr<c10::TensorImpl> of;
};

void keep_gradient(PlacedTensorImpl& impl, FrontMeta& meta) {
  impl.value().local.retain_grad();
  meta.retains_grad_ = true;
  meta.grad_fn_->add_retains_grad_hook(std::make_unique<KeepGradient>(impl), 0);
}

void renew_front(const at::Tensor& placed, FrontMeta& meta) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  auto node = make_front(placed);
  const bool keeps_gradient = leave_hooks(meta);
  impl.set_bridge(nullptr);
  impl.set_front(node);
  meta.grad_fn_ = std::move(node);
  meta.output_nr_ = 0;
  if (keeps_gradient) keep_gradient(impl, meta);
  meta.pending.store(false, std::memory_order_release);
}

}  // namespace

void attach_front(const at::Tensor& placed) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  if (!impl.value().local.requires_grad()) return;
  if (impl.autograd_meta() == nullptr) {
    impl.set_autograd_meta(std::make_unique<FrontMeta>(impl));
    return;
  }
  if (is_pending(front_meta(impl))) return;
  // A write that was not recorded leaves a place of the tensor's own, as on one device.
  const bool known = is_attached(impl) || stands_on_front(impl);
  if (known ? !is_outdated(impl) : !c10::GradMode::is_enabled()) return;
  adopt_meta(impl);
  renew_front(placed, *front_meta(impl));
}

void leave_graph(const at::Tensor& placed) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  {
    const BelowDoor below;
    impl.set_value({impl.value().local.detach(), impl.value().layout});
  }
  impl.set_front(nullptr);
  impl.set_bridge(nullptr);
  AutogradMeta* const meta = meta_of(impl);
  if (meta == nullptr) return;
  meta->requires_grad_ = false;
  meta->grad_fn_ = nullptr;
  meta->output_nr_ = 0;
  if (FrontMeta* const ours = front_meta(impl)) ours->pending = false;
}

void replace_value(const at::Tensor& placed, Value value) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  const at::Tensor before = impl.value().local;
  const bool keeps_gradient =
      before.retains_grad() && !value.local.is_same(before) && value.local.requires_grad();
  impl.set_value(std::move(value));
  if (keeps_gradient) impl.value().local.retain_grad();
  attach_front(placed);
  if (const at::Tensor base = impl.base(); base.defined()) attach_front(base);
}

void update_front(const at::Tensor& placed) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  FrontMeta* const meta = front_meta(impl);
  if (meta == nullptr) return;
  const std::lock_guard<std::mutex> lock(meta->mutex_);
  if (is_pending(meta) && meta->grad_fn_) {
    // A user's autograd::Function has returned the tensor as its own.
    meta->pending.store(false, std::memory_order_release);
  } else if (is_pending(meta) || is_outdated(impl)) {
    renew_front(placed, *meta);
  }
}

const at::Tensor* watched_local(const at::Tensor& placed) {
  update_front(placed);
  const PlacedTensorImpl& impl = *placed_impl(placed);
  return stands_on_front(impl) ? &impl.value().local : nullptr;
}

void retain_gradient(const at::Tensor& placed) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  if (!impl.value().local.retains_grad()) keep_gradient(impl, *front_meta(impl));
}

bool is_watched(const PlacedTensorImpl& impl) {
  if (has_own_place_in_graph(impl)) return true;
  const auto* meta = torch::autograd::impl::get_autograd_meta(impl.value().local);
  return meta != nullptr && (meta->retains_grad_ || !meta->hooks_.empty());
}

bool has_own_place_in_graph(const PlacedTensorImpl& impl) {
  const AutogradMeta* const meta = meta_of(impl);
  if (meta == nullptr) return false;
  return meta->grad_fn_ == nullptr ? is_own_leaf(impl) : !stands_on_front(impl);
}

bool is_own_leaf(const PlacedTensorImpl& impl) {
  const AutogradMeta* const meta = meta_of(impl);
  return meta != nullptr && meta->requires_grad_ && meta->grad_fn_ == nullptr &&
         !is_pending(front_meta(impl));
}

bool front_is_pending(const PlacedTensorImpl& impl) {
  return is_pending(front_meta(impl));
}

bool follows_base(const PlacedTensorImpl& impl) {
  const at::Tensor base = impl.has_base() ? impl.base() : at::Tensor();
  if (!base.defined()) return false;
  const PlacedTensorImpl& of = *placed_impl(base);
  return has_own_place_in_graph(of) && !is_own_leaf(of) && !is_attached(of);
}

at::Tensor attached(const at::Tensor& placed) {
  PlacedTensorImpl& impl = *placed_impl(placed);
  const Value& value = impl.value();
  const auto bridge_to = [&](const at::Tensor& local) {
    std::shared_ptr<Node> bridge(new BridgeNode(value.layout), torch::autograd::deleteNode);
    bridge->add_next_edge(torch::autograd::impl::gradient_edge(placed));
    bridge->add_input_metadata(local);
    if (local.grad_fn() != nullptr) leave_hooks(*torch::autograd::impl::get_autograd_meta(local));
    torch::autograd::impl::set_gradient_edge(local, Edge(bridge, 0));
    return bridge;
  };
  if (is_own_leaf(impl)) {
    // Its accumulator holds it, so that it must not hold what leads there; and it is not written.
    const BelowDoor below;
    at::Tensor alias = value.local.detach();
    bridge_to(alias);
    return alias;
  }
  adopt_meta(impl);
  update_front(placed);
  // The local tensor itself, not an alias of it: then LibTorch knows what a write to one of its
  // views means for the others.
  if (has_own_place_in_graph(impl) && !is_attached(impl)) impl.set_bridge(bridge_to(value.local));
  return value.local;
}

}  // namespace oslo
