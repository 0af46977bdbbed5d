#pragma once

#include <optional>
#include <string>

#include "parallelizers/pipeline/schedule/order/playback.h"
#include "parallelizers/pipeline/schedule/order/schedule.h"
#include "parallelizers/pipeline/schedule/timeline/timeline.h"

namespace oslo::pipeline {

/// A step as it was recorded, beside what its lists alone would make of it: what is left between
/// the two is what messages, the machine and the program add. Without LibTorch.
class MeasuredStep {
 public:
  /// `measured` in milliseconds. It is simulated at `costs`, unless given the means of what was
  /// measured (`costs_of`), over stages that each feed the next. Throws where it is not one whole
  /// step (`lists_of`).
  explicit MeasuredStep(Timeline measured, const std::optional<Costs>& costs = {});

  const Timeline& timeline() const { return measured_; }
  const Timeline& simulated() const { return simulated_; }
  /// The lists that were followed. Their kind is the name by which `make_schedule` gives them, or
  /// "measured" where they are none of those.
  const Schedule& schedule() const { return schedule_; }

  /// How long the step took, its bubble beside the simulated one and the one of the kind's formula,
  /// and a line for each rank with the shares of its time.
  std::string report() const;
  /// The measured step above the simulated one, to one scale.
  std::string svg() const;
  /// The measured step for chrome://tracing, ui.perfetto.dev and `oslo schedule --measured`.
  std::string chrome_trace() const;

 private:
  Timeline measured_;
  Schedule schedule_;
  Costs costs_;
  Timeline simulated_;
};

}  // namespace oslo::pipeline
