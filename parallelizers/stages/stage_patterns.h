#pragma once

#include <string>
#include <utility>
#include <vector>

#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

/// Names of parameters or buffers, and the stages that have them.
using StagePlaces = std::vector<std::pair<std::string, StageSet>>;

/// Paths, with `*` for one component and `0-5` for a range of numbers, and the stages of what lies
/// beneath them.
using StagePatterns = std::vector<std::pair<std::string, std::vector<int>>>;

/// Gives what patterns match its stages: a longer pattern wins over a shorter one, then one of
/// fewer stars, then the later one. Throws for a stage that is not one of `stages`, and for a
/// pattern that matches nothing.
void place_by_patterns(const StagePatterns& patterns, int stages, StagePlaces& parameters,
                       StagePlaces& buffers);

}  // namespace oslo
