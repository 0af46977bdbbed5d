#pragma once

#include <cstdint>
#include <vector>

#include "parallelizers/memory/offload/offload_scope.h"

namespace oslo::offload {

/// A value that operators of a forward save. Operators are known by their numbers, in order.
struct SavedValue {
  int64_t bytes = 0;
  std::vector<int> savers;  ///< at least one, the first one first
  int held_until = 0;       ///< the program holds it until after this operator of the forward
};

/// When a value is not on the device.
struct ForeseenMove {
  static constexpr int kNever = -1;
  int leaves = kNever;   ///< after this operator of the forward
  int returns = kNever;  ///< before the backward of this one
  bool moves() const { return leaves != kNever; }
};

/// What a `Store` does with a forward's values, if copies take no time: of each of `values`, in the
/// order in which they are saved. `forward_end`: the number of operators; what the program holds
/// until then is copied, and stays as well.
std::vector<ForeseenMove> foresee_moves(const std::vector<SavedValue>& values, int forward_end,
                                        const OffloadOptions& options);

}  // namespace oslo::offload
