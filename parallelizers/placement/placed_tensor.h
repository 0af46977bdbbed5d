#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>

#include "parallelizers/placement/gathered_view.h"
#include "parallelizers/placement/key.h"
#include "parallelizers/placement/value.h"

namespace torch::autograd {
struct Node;
}

namespace oslo {

/// An activation that is cut over ranks: global sizes, no storage; inside, this rank's part and its
/// layout. Every operator on it enters the door. Its gradient edge is a node that turns a global
/// (or placed) gradient into the local one, so that `requires_grad`, `backward(gradient)` and hooks
/// work; the graph proper is that of the local tensors.
class PlacedTensorImpl final : public c10::TensorImpl {
 public:
  /// Strides are read off the local tensor where its layout tells them; otherwise every rank has to
  /// be told: those of a contiguous tensor, which the local one must be, unless `stride` is called.
  explicit PlacedTensorImpl(Value value, std::shared_ptr<const GatheredView> view = nullptr);
  /// The same for the result of a pointwise operator on `like`.
  PlacedTensorImpl(Value value, const PlacedTensorImpl& like);

  /// Gives the tensor the strides that one device's has.
  void stride(c10::IntArrayRef strides);

  const Value& value() const { return value_; }
  /// Of a view whose operator had to gather; null otherwise.
  const std::shared_ptr<const GatheredView>& gathered_view() const { return gathered_view_; }
  /// After an operator changed the local tensor in place.
  void refresh(at::Tensor local);
  /// The same view, taken again.
  void refresh(const PlacedTensorImpl& again);

  const torch::autograd::Node* front() const { return front_; }
  void set_front(const torch::autograd::Node* front) { front_ = front; }

  /// A view of a parallel parameter, which may not be written while its gradient is recorded.
  bool views_parameter() const { return views_parameter_; }
  void set_views_parameter() { views_parameter_ = true; }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool allow_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version, bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;
  bool has_storage() const override;

 private:
  const char* tensorimpl_type_name() const override;
  void keep_only_our_key();
  void set_global_geometry();

  Value value_;
  const torch::autograd::Node* front_ = nullptr;
  std::shared_ptr<const GatheredView> gathered_view_;
  bool views_parameter_ = false;
};

/// What LibTorch takes for the sign of a tensor that was not made in inference mode.
constexpr c10::DispatchKeySet kNotInference(c10::DispatchKey::ADInplaceOrView);

/// The implementation behind a placed tensor; null for any other tensor. Only ours have no backend.
inline PlacedTensorImpl* placed_impl(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return (impl->key_set() | kNotInference) == (c10::DispatchKeySet(kPlacedKey) | kNotInference)
             ? static_cast<PlacedTensorImpl*>(impl)
             : nullptr;
}

/// A tensor that stands for `value`: a plain one where no axis cuts it, else a placed one.
at::Tensor wrap(Value value);
/// The same for a value in the layout of `like`.
at::Tensor wrap_like(Value value, const PlacedTensorImpl& like);

/// A view, which aliases another local tensor. `strides`: those of one device's view, where the
/// layout does not tell them. A view of gathered elements stays placed even where it is whole, so
/// that writing to it, and using it after its base was written, are seen.
at::Tensor wrap_view(Value value, c10::IntArrayRef strides,
                     std::shared_ptr<const GatheredView> gathered = nullptr);

/// The value inside a placed tensor, attached to the tensor's own place in the autograd graph
/// where that differs (a user's autograd::Function, hooks, retained gradients, leaves). A gathered
/// view whose base was written is taken again, which moves data.
Value unwrap(const at::Tensor& placed);

/// Whether autograd knows the tensor by more than the front edge we gave it.
bool has_own_place_in_graph(const at::Tensor& placed);

/// Lets a view count its writes with what it is a view of.
void share_version(const at::Tensor& view, const at::Tensor& base);

/// Sets the front edge of a placed tensor from its local tensor.
void attach_front(const at::Tensor& placed);

}  // namespace oslo
