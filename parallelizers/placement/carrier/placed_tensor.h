#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/layout/value.h"

namespace oslo {

struct GatheredView;

/// An activation that is cut over ranks: global sizes, no storage; inside, this rank's part and its
/// layout. Every operator on it enters the door. Its place in autograd's graph (graph_place.h) is
/// kept where LibTorch keeps such places.
class PlacedTensorImpl final : public c10::TensorImpl {
 public:
  /// Strides are read off the local tensor where its layout tells them; otherwise every rank has to
  /// be told: those of a contiguous tensor, which the local one must be, unless `stride` is called.
  explicit PlacedTensorImpl(Value value, std::shared_ptr<const GatheredView> view = nullptr);
  /// The same for the result of a pointwise operator on `like`.
  PlacedTensorImpl(Value value, const PlacedTensorImpl& like);

  /// Gives the tensor the strides that one device's has.
  void stride(c10::IntArrayRef strides);

  /// The value, of which a partial sum is ended first: collective, once.
  const Value& value() const {
    if (value_.partial) end();
    return value_;
  }
  /// The same as it is; for those who know what to do with a partial sum.
  const Value& unfinished() const { return value_; }
  bool partial() const { return value_.partial != nullptr; }
  const LayoutPtr& layout() const { return value_.layout; }
  /// Of a view whose operator had to gather; null otherwise.
  const std::shared_ptr<const GatheredView>& gathered_view() const { return gathered_view_; }
  void set_gathered_view(std::shared_ptr<const GatheredView> view) {
    gathered_view_ = std::move(view);
  }
  /// A copy without history: a gathered view that is taken again records nothing.
  bool detached() const { return detached_; }
  void set_detached() { detached_ = true; }
  /// What the plan says of the weight that this is the transpose or another form of; null for all
  /// else.
  const std::shared_ptr<const WeightUses>& weight_uses() const { return weight_uses_; }
  void set_weight_uses(std::shared_ptr<const WeightUses> uses) { weight_uses_ = std::move(uses); }
  /// After a write, or for a view that was taken again; the geometry stays.
  void set_value(Value value) { value_ = std::move(value); }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool allow_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version, bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;
  bool has_storage() const override;
  void release_resources() override;

 private:
  const char* tensorimpl_type_name() const override;
  void keep_only_our_key();
  void set_global_geometry();
  void end() const;
  /// The strides of a contiguous tensor of these sizes, whatever the size of a dimension.
  void pack(c10::IntArrayRef sizes);
  void copy_packed_geometry(const PlacedTensorImpl& like);

  Value value_;
  std::shared_ptr<const GatheredView> gathered_view_;
  bool detached_ = false;
  std::shared_ptr<const WeightUses> weight_uses_;
  bool packed_ = false;
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

/// Gives `value` the strides that every rank tells alike: a contiguous local tensor where its
/// layout does not tell them.
void make_told(Value& value);

// From values to tensors and back (wrap.cpp).

/// A tensor that stands for `value`: a plain one where no axis cuts it, else a placed one.
at::Tensor wrap(Value value);
/// A placed one also where no axis cuts it.
at::Tensor wrap_placed(Value value);
/// The same for a value in the layout of `like`.
at::Tensor wrap_like(Value value, const PlacedTensorImpl& like);

/// A view, which aliases another local tensor. `strides`: those of one device's view, where the
/// layout does not tell them. A view of gathered elements stays placed even where it is whole, so
/// that writing to it, and using it after its base was written, are seen; so does one with
/// `even_whole`.
at::Tensor wrap_view(Value value, c10::IntArrayRef strides,
                     std::shared_ptr<const GatheredView> gathered = nullptr,
                     bool even_whole = false);

/// The value inside a placed tensor, attached to the tensor's own place in the autograd graph
/// where that differs (a user's autograd::Function, hooks, retained gradients, leaves). A gathered
/// view whose base was written is taken again, which moves data.
Value unwrap(const at::Tensor& placed);

/// This rank's part in `layout` of a gradient, or another tensor, that is placed or whole.
at::Tensor local_in(at::Tensor tensor, const LayoutPtr& layout);

/// Lets a view count its writes with what it is a view of.
void share_version(const at::Tensor& view, const at::Tensor& base);

}  // namespace oslo
