#pragma once

#include "oslo_cpp/model/parallel_model.h"

namespace oslo {

/// For `oslo plan`: prints the plan, as a table or as JSON (OSLO_PLAN_FORMAT=json), says so on
/// standard error, and ends the process with 0.
[[noreturn]] void print_plan_and_exit(const ParallelModel& parallel);

}  // namespace oslo
