#pragma once

#include <string>
#include <vector>

#include "parallelizers/plan/report/plan_report.h"

namespace oslo {

/// Parameters that differ in nothing but numbers in their names, as one line of a table.
struct FoldedEntry {
  /// "h.*.attn.c_attn.weight"; where other layers of that name are planned otherwise,
  /// "h.{0,2-5}.attn.c_attn.weight".
  std::string name;
  std::vector<const PlanEntry*> entries;  ///< never empty
  std::string why;                        ///< of all of them
};

/// The lines of a plan, each where the first of its parameters stands.
std::vector<FoldedEntry> fold(const std::vector<PlanEntry>& entries);

}  // namespace oslo
