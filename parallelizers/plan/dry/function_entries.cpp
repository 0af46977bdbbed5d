#include "parallelizers/plan/dry/function_entries.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace oslo {

const OperatorEntry* FunctionEntries::of(const at::RecordFunction& function) {
  const auto [found, added] = known_.emplace(function.name(), nullptr);
  if (!added) return found->second;
  const auto name = function.operator_name();
  if (!name) return nullptr;
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  if (handle) found->second = &entry_of(*handle);
  return found->second;
}

}  // namespace oslo
