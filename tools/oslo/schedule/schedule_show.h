#pragma once

#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/kinds.h"

namespace oslo::tool {

/// What `oslo schedule` was asked for.
struct ScheduleRequest {
  pipeline::ScheduleOptions sizes;
  std::string from, costs, svg, chrome;
  std::vector<std::string> measured;
  std::vector<int> reads;
  bool lists = false;
  bool compare = false;
};

/// Prints the grid, makespan, bubble and peaks of one schedule, and writes what is asked for. This
/// and those below throw `Error` for what cannot be, and `FileError`, which is no misuse.
void show_simulated(const ScheduleRequest& request);

/// Prints a line for each kind, over the same model: a rank's share of it is the cost that is
/// given, cut into the kind's stages. Kinds that do not take these sizes say why.
void show_compared(const ScheduleRequest& request);

/// Prints what a measured step was like beside what its lists alone would make it.
void show_measured(const ScheduleRequest& request);

}  // namespace oslo::tool
