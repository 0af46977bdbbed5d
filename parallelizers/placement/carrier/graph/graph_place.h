#pragma once

#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "mpu/base/node_ptr.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

/// The place of a placed tensor in autograd's graph; LibTorch keeps it with the tensor.
///
/// The graph proper is that of the local tensors. A placed tensor's own node, its front, stands
/// beside it and turns a gradient of the placed tensor into one of the local tensor. Few fronts are
/// ever looked at (`backward()` on a cut tensor, `grad_fn()`, an autograd::Function), so that one
/// is made when LibTorch asks for it. Hooks and retained gradients are those of the local tensor,
/// with its gradient shown as a placed one.
///
/// LibTorch changes places, too: results of a user's autograd::Function, and what it has written
/// (`mark_dirty`), stand at that function's node. Therefore the state is read off the node that
/// LibTorch has and the one that was made here.
///
/// Methods may be called by several threads at once, as reading a tensor may.
class GraphPlace final : public torch::autograd::AutogradMeta {
 public:
  enum class State {
    none,     ///< requires no gradient
    pending,  ///< stands at the local tensor; the front is still to be made
    front,    ///< stands at the local tensor, by its front
    own,      ///< stands at a node of LibTorch's or the user's: a place of its own
    bridged,  ///< the same, and the local tensor's history leads there
    leaf,     ///< was itself made to require a gradient
  };

  /// Gives a new tensor its place: at its local tensor.
  static void give(PlacedTensorImpl& impl);
  /// The place of a tensor; made, or taken over from LibTorch, where it has none of ours.
  static GraphPlace& of(const PlacedTensorImpl& impl);
  /// Null where that would be `none`.
  static GraphPlace* find(const PlacedTensorImpl& impl) {
    return impl.autograd_meta() == nullptr ? nullptr : &of(impl);
  }

  State state() const;
  /// own, bridged or leaf: not at the local tensor.
  bool stands_elsewhere() const;
  /// Whether operators may use the local tensor as it is: neither the tensor, nor what it is a view
  /// of, stands elsewhere in the graph.
  bool at_local() const;

  // Transitions.

  /// pending, or outdated -> front, when somebody asks for the node. A place is outdated after the
  /// local tensor got another history: by a write to it, or to what shares its memory.
  void settle();
  /// The local tensor as operators may use it. own -> bridged: what uses it leads to this place.
  at::Tensor bridged_local();
  /// After a write to the local tensor. none -> pending, if a gradient was recorded; any other
  /// outdated place -> front.
  void follow_local();
  /// The same of a partial sum, which has no front yet.
  void follow_sum() {
    if (of_.unfinished().local.requires_grad()) pending_.store(true, std::memory_order_release);
  }
  /// The tensor gets another local one, by a write or because a gathered view was taken again; what
  /// it is a view of follows as well.
  void replace_value(Value value);
  /// bridged -> own: the local tensor is about to be another, which does not lead here.
  void unbridge();
  /// Any -> none, as `detach_` does: the tensor stays, with another local one.
  void leave_graph();

  // Hooks and retained gradients.

  /// The tensor that they are set on; null where that is the placed tensor itself.
  const at::Tensor* watched_local();
  /// Keeps the gradient of a tensor with a `watched_local`.
  void retain_gradient();
  /// Whether there are any, or may be: at a place of the tensor's own.
  bool is_watched() const;

  // What the tensor is a view of.

  /// A write to either gives both a gradient. Undefined where there is none, or it is gone.
  at::Tensor base() const;
  void set_base(const at::Tensor& base);
  /// A view of a leaf may not be written while its gradient is recorded.
  bool views_leaf() const { return leaf_.defined(); }
  /// The parameter that it is a view of; undefined where it is none of any.
  const at::Tensor& leaf() const { return leaf_; }
  void set_leaf(const at::Tensor& leaf) { leaf_ = leaf; }

  bool requires_grad() const override {
    return pending_.load(std::memory_order_acquire) || AutogradMeta::requires_grad();
  }
  const at::Tensor& grad() const override { return const_cast<GraphPlace*>(this)->mutable_grad(); }
  /// With what the local tensor has retained since the last look.
  at::Tensor& mutable_grad() override;

 private:
  friend struct KeepGradient;
  explicit GraphPlace(PlacedTensorImpl& impl) : of_(impl) {}
  static GraphPlace& take_over(PlacedTensorImpl& impl);

  // These want the lock to be held.
  State current() const;
  bool outdated() const;
  void renew();
  void settle_locked();
  void keep_gradient();

  const at::Tensor& local() const { return of_.value().local; }
  void add_gradient(const at::Tensor& gradient);

  PlacedTensorImpl& of_;
  /// Of this, of `node_`, and of LibTorch's `grad_fn_` where it is ours.
  mutable std::mutex lock_;
  std::atomic<bool> pending_{false};
  bool bridges_ = false;  ///< what `node_` is
  /// The front, to which LibTorch's `grad_fn_` leads, or the bridge, which leads to `grad_fn_`.
  NodePtr node_;
  at::Tensor leaf_;
  c10::weak_intrusive_ptr<c10::TensorImpl> base_{c10::intrusive_ptr<c10::TensorImpl>()};
};

/// Whether a view's base stands at a node of its own that nothing leads to yet: a user's
/// autograd::Function has written it (`mark_dirty`).
bool follows_base(const GraphPlace& place);

}  // namespace oslo
