#pragma once

#include <vector>

#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

/// What some units of a model (its layers, say) cost together, in any measure: a stage with one or
/// more of them has the cost once. Of a table that two units use, each stage has a copy.
struct UnitCost {
  StageSet units;  ///< counted from 0
  double cost = 0;
};

/// The sum of what a stage with units `first` to `last` (exclusive) has.
double cost_of_units(const std::vector<UnitCost>& costs, int first, int last);

/// The stage of each unit, for `units` of them, in order, on `stages`, each of which has one or
/// more: of all such cuts one whose dearest stage costs least, and of those the one with the least
/// sum of squares. Of `units` at least as many as `stages`, and at most StageSet::kMost.
///
/// The "linear partition" problem, by dynamic programming: in stages x units^2 steps.
std::vector<int> balanced_stages(int units, int stages, const std::vector<UnitCost>& costs);

}  // namespace oslo
