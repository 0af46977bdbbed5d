#pragma once

#include "parallelizers/memory/recompute/checkpoint.h"
#include "parallelizers/memory/recompute/recorder.h"

namespace oslo::recompute {

/// What is switched on for a thread while a segment is recorded.
struct RecordingScopes {
  RecordingScopes(std::shared_ptr<Segment> made, const CheckpointOptions& options)
      : segment(std::move(made)),
        recorder(segment, [keep_if = options.keep_if()](const OperatorEntry& op,
                                                        c10::ArrayRef<c10::IValue> arguments) {
          return keep_if && keep_if(op.name, arguments);
        }) {}

  std::shared_ptr<Segment> segment;
  Recorder recorder;
  NoCastCache no_cast_cache;
  SavedTensorScope saving{[this](const at::Tensor& saved) { return recorder.pack(saved); }};
  OperatorTap::Scope tapped{recorder};
};

}  // namespace oslo::recompute
