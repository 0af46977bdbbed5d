#pragma once

#include <ostream>

#include "parallelizers/plan/report/plan_report.h"

namespace oslo {

/// Prints which layers each stage of a plan's pipeline has, who said so, what their parameters take
/// and the share of a step that it computes. Nothing without a pipeline.
void print_pipeline(std::ostream& out, const Plan& plan);

}  // namespace oslo
