#include "parallelizers/pipeline/schedule/timeline/bubble_formula.h"

#include <algorithm>

namespace oslo::pipeline {

std::optional<BubbleFormula> bubble_formula(const ScheduleOptions& options, double forward,
                                            double input, double weight) {
  const std::string& kind = options.kind;
  const int ranks = options.ranks;
  const int micro_batches = options.micro_batches;
  const int chunks = options.chunks == 0 ? default_chunks(kind) : options.chunks;
  const double stage = forward + input + weight;
  const double busy = chunks * micro_batches * stage;
  const auto longer_by = [&](const char* text, double more) {
    const double makespan = busy + more;
    return BubbleFormula{text, makespan, makespan > 0 ? more / makespan : 0};
  };
  const bool whole_rounds = chunks == 1 || micro_batches % ranks == 0;
  // What a rank waits for when the weights' parts fill the rest.
  const double split = (ranks - 1) * std::max({forward, input, forward + input - weight});

  if (kind == "naive") return longer_by("1 - 1/p", busy * (ranks - 1));
  if (kind == "gpipe" || kind == "1f1b") {
    return longer_by("(p-1)/(m + p-1)", (ranks - 1) * stage);
  }
  if (kind == "interleaved" && whole_rounds) {
    return longer_by("(p-1)/(v m + p-1)", (ranks - 1) * stage);
  }
  if (kind == "zero_bubble" && whole_rounds && micro_batches >= ranks) {
    return longer_by("d/(v m (F+I+W) + d), d = (p-1) max(F, I, F+I-W)", split);
  }
  if (kind == "zbv" && micro_batches >= 2 * ranks - 1 && forward == input && input == weight) {
    return longer_by("(p-1)/(6m + p-1), all of it before a rank's first action and after its last",
                     (ranks - 1) * forward);
  }
  if (kind == "dualpipev" && input <= forward && forward <= input + weight) {
    return longer_by("d/(2 m (F+I+W) + d), d = (p-1) max(F, F+I-W)", split);
  }
  return std::nullopt;
}

}  // namespace oslo::pipeline
