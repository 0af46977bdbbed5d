#pragma once

#include <memory>
#include <utility>

#include "parallelizers/memory/recompute/recorder.h"

namespace oslo::recompute {

/// What is switched on for a thread while a segment is recorded.
struct RecordingScopes {
  RecordingScopes(std::shared_ptr<Segment> made, KeepIf keep_if)
      : segment(std::move(made)), recorder(segment, std::move(keep_if)) {}

  std::shared_ptr<Segment> segment;
  Recorder recorder;
  CastsOfModelOnly casts;
  SavedTensorScope saving{[this](const at::Tensor& saved) { return recorder.pack(saved); }};
  OperatorTap::Scope tapped{recorder};
};

}  // namespace oslo::recompute
