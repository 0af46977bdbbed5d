#pragma once

#include "parallelizers/libtorch/version_bit.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

/// The common case of a pointwise operator, recognized without a Call: operands that lie alike,
/// next to scalars and broadcast plain tensors. Each rank's parts then give its part of the result.
class Alike {
 public:
  /// Looks at one operand. False: it is another case.
  bool take(const at::Tensor& operand) {
    if (!operand.defined()) return true;
    const PlacedTensorImpl* const impl = placed_impl(operand);
    return impl == nullptr ? take_plain(operand) : take_placed(impl);
  }

  /// Whether the operands taken are that case.
  bool holds() const {
    return first_ != nullptr && !first_->value().local.is_meta() &&
           (plain_count_ == 0 || plain_fits());
  }

  /// Whether the result's order in memory is that of `first`. Of several operands that are not all
  /// contiguous LibTorch makes one order, which a part may not show; so does a value with gaps.
  bool order_is_first() const {
    return contiguous_ || (first_dense() && (with_order_ <= 1 || same_order_));
  }

  /// What the result lies like.
  const PlacedTensorImpl& first() const { return *first_; }

 private:
  static constexpr size_t kMostPlain = 4;

  bool take_plain(const at::Tensor& operand) {
    if (operand.key_set().has(kPlacedKey) || plain_count_ == kMostPlain) return false;
    plain_[plain_count_++] = &operand;
    if (operand.dim() == 0) return true;
    take_order(operand.layout() == at::kStrided && operand.is_contiguous());
    same_order_ = false;
    return true;
  }

  bool take_placed(const PlacedTensorImpl* impl) {
    if (impl->partial() || impl->gathered_view() || is_left_behind(*impl)) return false;
    if (impl->layout()->context()->replica_axis >= 0) return false;
    const GraphPlace* const place = GraphPlace::find(*impl);
    if (place != nullptr && !place->at_local()) return false;
    take_order(impl->is_contiguous());
    if (first_ == nullptr) {
      first_ = impl;
      return true;
    }
    if (!contiguous_) {
      same_order_ &= impl->sizes() == first_->sizes() && impl->strides() == first_->strides();
    }
    const LayoutPtr &own = impl->value().layout, &first = first_->value().layout;
    if (impl->dim() != first_->dim()) return false;
    return own == first || (own->followed() == first->followed() && *own == *first);
  }

  void take_order(bool contiguous) {
    contiguous_ &= contiguous;
    ++with_order_;
  }

  bool plain_fits() const;
  bool first_dense() const {
    return first_->value().layout->tells_strides() || first_->is_non_overlapping_and_dense();
  }

  const PlacedTensorImpl* first_ = nullptr;
  size_t plain_count_ = 0;
  size_t with_order_ = 0;
  bool contiguous_ = true;
  bool same_order_ = true;
  const at::Tensor* plain_[kMostPlain];
};

/// The common case of an optimizer's operators, while no gradients are recorded: parts that lie
/// alike, which are parameters, their gradients, their states, and what was computed of those; next
/// to numbers.
class AlikeParts {
 public:
  /// Looks at one operand. False: it is another case.
  bool take(const at::Tensor& operand) {
    if (!operand.defined()) return true;
    if (!operand.key_set().has(kPlacedKey))
      return operand.unsafeGetTensorImpl()->is_wrapped_number();
    const PlacedTensorImpl* const impl = placed_impl(operand);
    if (impl == nullptr) return lies(mark_of(operand)->layout, operand);
    if (impl->partial() || impl->gathered_view()) return false;
    if (impl->weight_uses() || is_left_behind(*impl) || !impl->is_contiguous()) return false;
    if (placed_ == nullptr) placed_ = impl;
    return lies(impl->layout(), impl->value().local);
  }

  /// What a result lies like.
  const LayoutPtr& layout() const { return *layout_; }
  /// The first operand that is no parameter or the like; null where there is none.
  const PlacedTensorImpl* placed() const { return placed_; }

 private:
  bool lies(const LayoutPtr& layout, const at::Tensor& local);

  const LayoutPtr* layout_ = nullptr;
  const PlacedTensorImpl* placed_ = nullptr;
  at::IntArrayRef sizes_;
};

}  // namespace oslo
