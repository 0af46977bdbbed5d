#pragma once

#include <string>

#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/layers/role.h"

namespace oslo {

/// What another cut would have done to the step: " would move 49.2 KB and take 3.0 % longer".
std::string compared_text(const DryCost& other, const DryCost& cost);

/// Why the search left a role whole. `gathered`: each of its cuts would have to be.
std::string whole_text(const Role& role, bool gathered);

}  // namespace oslo
