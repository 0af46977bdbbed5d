#pragma once

#include <string>
#include <string_view>

#include "parallelizers/pipeline/schedule/timeline/timeline.h"

namespace oslo::pipeline {

/// A timeline as a Chrome trace, for chrome://tracing or ui.perfetto.dev: an object whose
/// "traceEvents" holds an event ("ph": "X", "ts" and "dur" in microseconds, "tid" the rank) for
/// each of the timeline's, with "args": {"rank", "stage", "micro_batch", "kind"}. A kind is
/// forward, backward, backward_input or backward_weight; or send, receive, wait or reduce, and then
/// "of" says which pass that is for.
///
/// A timeline's unit is a millisecond here.
std::string to_chrome_trace(const Timeline& timeline);

/// Reads what `to_chrome_trace` writes; also a bare array of events. Events
/// without those args are left out, so that a trace may hold more. Throws `oslo::Error` where the
/// text is no such trace, naming the event.
Timeline parse_chrome_trace(std::string_view text);

}  // namespace oslo::pipeline
