#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// Elements that a view operator had to gather, and views were then taken of: on one device a part
/// of `base`, here a copy. Views of one gather share it.
class GatheredBase {
 public:
  /// `base`, placed or marked, became `held` (which may still be cut on some axis).
  GatheredBase(at::Tensor base, Value held);

  const at::Tensor& base() const { return base_; }
  const Value& held() const { return held_; }

  /// Whether `base` was written since.
  bool stale() const;
  /// Whether `base` has the shape that the views were taken of, which operators such as `t_`
  /// change.
  bool keeps_shape() const;
  /// `base` was given the content of `held`.
  void written_back();

 private:
  struct Moment {
    at::Tensor local;
    uint64_t version = 0;
    uint64_t uncounted = 0;  ///< tensors of inference mode count no versions
    bool operator==(const Moment& other) const {
      return local.is_same(other.local) && version == other.version && uncounted == other.uncounted;
    }
  };
  Moment now() const;

  at::Tensor base_;
  c10::SmallVector<int64_t, 6> base_sizes_, base_strides_;
  Value held_;
  Moment taken_;
};

/// How a placed tensor is a view of gathered elements. Writing to it writes `base` too; after
/// `base` was written by other means, the view is taken again.
struct GatheredView {
  std::shared_ptr<GatheredBase> of;
  c10::OperatorHandle op;              ///< the view operator
  std::vector<c10::IValue> arguments;  ///< of it, the viewed tensor first
  size_t result = 0;                   ///< which of its results
  size_t element = 0;                  ///< in a result that is a list: which of it
  bool recorded = false;               ///< taken while gradients were recorded

  /// Calls the operator again. `detached`: for what `detach` made of the view, which records
  /// nothing.
  at::Tensor take_again(bool detached) const;
};

}  // namespace oslo
