#pragma once

#include <string>
#include <string_view>

#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// A line of sizes, and one for each rank with its list:
///
///     1f1b ranks 2 micro_batches 3 chunks 1
///     rank 0: F0 F1 B0 F2 B1 B2
///     rank 1: F0 B0 F1 B1 F2 B2
///
/// Where every rank has the stage of its own number, and no other, actions leave the stage out.
std::string to_text(const Schedule& schedule);

/// What `to_text` wrote, or a list of one's own in that form. Empty lines and what follows a # are
/// ignored. Throws `oslo::Error` that names the line and the word, and for lists that `check_lists`
/// refuses.
Schedule parse_schedule(std::string_view text);

}  // namespace oslo::pipeline
