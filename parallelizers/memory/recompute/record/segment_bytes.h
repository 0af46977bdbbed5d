#pragma once

#include <vector>

#include "parallelizers/memory/recompute/record/segment.h"

namespace oslo::recompute {

/// Of all its elements, by its global sizes where it is cut.
double bytes_of(const MetTensor& met);

/// What a segment's memory weighs, while all that it has saved is still there. Where tensors are
/// cut, by their global shapes, and without what only kernels know of (statistics): the same on all
/// ranks. Parameters, and other leaves, weigh nothing: they are there anyway.
class SegmentBytes {
 public:
  explicit SegmentBytes(const Segment& segment);

  double of(int storage) const { return bytes_[storage]; }
  /// Of what an operator saves that is neither an argument nor a result.
  double of(const SavedSlot& slot) const;

  /// What is left for backward where nothing runs again.
  double saved() const;
  /// The same where what `kept` names is kept, and inputs are: of operators that do not run again
  /// (`holds(number)`) what else they saved, of others the states of the generators.
  template <typename Holds>
  double left(const std::vector<bool>& kept, const Holds& holds) const {
    double sum = 0;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (kept[i] || segment_.storages[i].outside) sum += bytes_[i];
    }
    for (size_t i = 0; i < segment_.operators.size(); ++i) {
      for (const auto& [generator, state] : segment_.operators[i].random) {
        if (!holds(static_cast<int>(i))) sum += static_cast<double>(state.nbytes());
      }
    }
    segment_.for_each_slot([&](const SavedSlot& slot, int number) {
      if (slot.storage == kNone && number != kNone && holds(number)) sum += of(slot);
    });
    return sum;
  }

 private:
  const Segment& segment_;
  bool placed_ = false;
  std::vector<double> bytes_;  ///< of each storage
};

}  // namespace oslo::recompute
