#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/AutogradState.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/DimVector.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "parallelizers/memory/recompute/record/logged_carrier.h"
#include "parallelizers/memory/saved_geometry.h"
#include "parallelizers/placement/door/autocast.h"
#include "parallelizers/placement/layout/layout.h"
#include "parallelizers/placement/operators/fused_run.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo::recompute {

constexpr int kNone = -1;

/// A tensor among an operator's arguments or results.
struct MetTensor {
  int storage = kNone;  ///< of `Segment::storages`; kNone: undefined, or without memory
  uint32_t writes = 0;  ///< operators of the segment that had written there when it was met
  c10::DimVector sizes;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool defined = false;
  bool statistics = false;  ///< that a batch normalization updates
  int maker = kNone;        ///< of an argument, where records are replayed: the operator that made
  int place = 0;            ///< it, and which of its results it was; kNone: it was there before
  // Of results.
  SavedGeometry geometry;
  bool plain = false;  ///< an ordinary dense tensor, which `geometry` says all of
  LayoutPtr whole;     ///< of a placed one that nothing cuts, whose inside `geometry` says all of
  bool requires_grad = false;
  at::Tensor kept;  ///< a placed one that is not computed again
};

/// What an operator saves for backward.
struct SavedSlot {
  at::Tensor value;  ///< until the segment ends, and between recomputation and use
  c10::weak_intrusive_ptr<c10::TensorImpl> taken{
      c10::intrusive_ptr<c10::TensorImpl>()};  ///< where somebody may still hold it
  bool kept = false;                           ///< `value` stays
  int storage = kNone;                         ///< what it is a view of; kNone: nothing known
  SavedGeometry geometry;
};

/// What replaying one operator takes.
struct ReplayedCall {
  std::vector<c10::IValue> arguments;  ///< undefined tensors for what the segment made
  c10::impl::LocalDispatchKeySet keys;
  c10::AutogradState gradients;
  AutocastState autocast;
};

/// One operator of a segment, in the order in which they ran.
struct OperatorRecord {
  const OperatorEntry* op = nullptr;
  std::vector<MetTensor> arguments, results;
  c10::SmallVector<int, 2> written;     ///< storages
  std::vector<c10::IValue> numbers;     ///< the results, where none is a tensor
  c10::SmallVector<int, 4> list_sizes;  ///< of each result: kNone for a tensor, else a list's size
  std::vector<std::pair<at::Generator, at::Tensor>> random;  ///< states before it drew
  c10::SmallVector<std::weak_ptr<SavedSlot>, 4> saved;       ///< in order
  FusedRun::Choices fused;                                   ///< what its products and GeLUs chose
  std::shared_ptr<CarriedLog> carried;  ///< from other pipeline stages; null: no carrier
  std::optional<ReplayedCall> call;     ///< where records are replayed
  bool placed = false;                  ///< meets tensors that are cut, or on a pipeline stage
  bool rebuildable = true;  ///< its results are tensors and lists of them, or no tensors at all
  bool always = false;      ///< costs nothing, or content may come to its results by other means
  bool asked = false;       ///< its kind is to be kept, on every rank
  bool to_keep = false;     ///< what it computes is asked to be kept
  double flops = 0;         ///< where somebody weighs it (operator_flops.h)
  bool makes_statistics = false;  ///< updates running statistics, which do not count as written

  /// It gives values to the program (`item`, `equal`) and no tensor.
  bool only_reads() const { return results.empty() && written.empty() && !numbers.empty(); }
};

/// Memory that the segment's operators met.
struct MetStorage {
  c10::weak_intrusive_ptr<c10::StorageImpl> impl{c10::intrusive_ptr<c10::StorageImpl>()};
  bool outside = false;   ///< it was there before
  bool leaf = false;      ///< of a parameter, or of data that the program holds
  bool may_keep = false;  ///< it decides values or shapes, or its operator is to be kept
  bool asked = false;     ///< for the second of these alone, so that it may be given up
  bool constant = false;  ///< made from no tensor; the program may have filled it by a pointer
  bool kept = false;      ///< `content` is there when operators run again
  uint32_t writes = 0;    ///< by operators of the segment
  c10::SmallVector<int, 4> makers;  ///< operators whose results lie in it, or that write it
  c10::Storage content = {};
};

/// A tensor from before the segment, as an operator met it.
struct OutsideTensor {
  const c10::TensorImpl* impl;  ///< to be compared only
  int storage;
  c10::VariableVersion version;
  uint32_t current = 0;  ///< at the segment's end
};

}  // namespace oslo::recompute
