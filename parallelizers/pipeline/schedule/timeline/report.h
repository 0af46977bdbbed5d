#pragma once

#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/schedule.h"
#include "parallelizers/pipeline/schedule/timeline/timeline.h"

namespace oslo::pipeline {

/// A row of text for each rank, time to the right: an action where it begins, = while it goes on,
/// dots where the rank waits. `leave_stage_out` where a row has only one.
///
///     rank 0  F0 F1 .. .. .. B0=== B1===
///     rank 1     F0 B0=== F1 B1===
///
/// Empty where a row would be longer than `most_columns`.
std::string grid(const Timeline& timeline, bool leave_stage_out, int most_columns = 500);

/// "12.5%".
std::string percent(double share);

/// Six digits at most; nothing but rounding is 0.
std::string number_text(double value);

/// Lines of cells, every column aligned to the right.
std::string aligned(const std::vector<std::vector<std::string>>& rows);

/// A line for each rank: its stages, how it spends the step, its bubble, and the most activations
/// that it keeps (peaks_of); times in the timeline's unit.
std::string rank_table(const Schedule& schedule, const Timeline& timeline);

/// "1f1b: 4 ranks, 8 micro-batches, 1 stage a rank".
std::string title_of(const Schedule& schedule);

/// A measured step beside the same lists simulated, both in milliseconds: how long it took, its
/// bubble beside what `formula` says, and a line for each rank with the shares of its time.
std::string measured_report(const Timeline& measured, const Timeline& simulated,
                            const std::string& formula);

}  // namespace oslo::pipeline
