#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "parallelizers/memory/recompute/recorder.h"

namespace oslo::recompute {

/// What is switched on for a thread while a segment is recorded.
struct RecordingScopes {
  /// `keep_if` goes by the operator's name; it may be empty.
  RecordingScopes(
      std::shared_ptr<Segment> made,
      std::function<bool(const std::string& op, c10::ArrayRef<c10::IValue> arguments)> keep_if)
      : segment(std::move(made)),
        recorder(segment, [keep_if = std::move(keep_if)](const OperatorEntry& op,
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
