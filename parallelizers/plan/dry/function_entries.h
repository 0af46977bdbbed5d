#pragma once

#include <ATen/record_function.h>

#include <unordered_map>

#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Knows of what `RecordFunction`'s observers are shown which operator it is; each is looked up
/// once. Of one thread.
class FunctionEntries {
 public:
  /// Null of what is no operator.
  const OperatorEntry* of(const at::RecordFunction& function);

 private:
  std::unordered_map<const void*, const OperatorEntry*> known_;  ///< by their names' addresses
};

}  // namespace oslo
