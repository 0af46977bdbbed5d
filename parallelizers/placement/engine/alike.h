#pragma once

#include "parallelizers/placement/carrier/graph_place.h"
#include "parallelizers/placement/carrier/stayed_behind.h"

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

  /// What the result lies like.
  const PlacedTensorImpl& first() const { return *first_; }

 private:
  static constexpr size_t kMostPlain = 4;

  bool take_plain(const at::Tensor& operand) {
    if (operand.key_set().has(kPlacedKey) || plain_count_ == kMostPlain) return false;
    plain_[plain_count_++] = &operand;
    return true;
  }

  bool take_placed(const PlacedTensorImpl* impl) {
    if (impl->gathered_view() || stayed_behind(*impl)) return false;
    const GraphPlace* const place = GraphPlace::find(*impl);
    if (place != nullptr && !place->at_local()) return false;
    if (first_ == nullptr) {
      first_ = impl;
      return true;
    }
    return impl->dim() == first_->dim() && (impl->value().layout == first_->value().layout ||
                                            *impl->value().layout == *first_->value().layout);
  }

  bool plain_fits() const;

  const PlacedTensorImpl* first_ = nullptr;
  size_t plain_count_ = 0;
  const at::Tensor* plain_[kMostPlain];
};

}  // namespace oslo
