#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallelizers/memory/budget/step_profile.h"
#include "parallelizers/memory/offload/offload_scope.h"
#include "parallelizers/plan/dry/memory_tape.h"

namespace oslo {

/// What a rank holds beside a step's activations, in bytes.
struct StepBase {
  int64_t model = 0;                       ///< parameters, buffers and inputs
  int64_t states = 0;                      ///< an optimizer's
  int64_t temporaries = 0;                 ///< of its step
  int64_t gradients = 0;                   ///< of all parameters
  std::vector<int64_t> segment_gradients;  ///< of those of each segment
};

/// What a rank would hold in the course of a step whose forward the tape shows, if the segments
/// `names` were computed again: an upper estimate. Backward is foreseen from the forward, operator
/// by operator from the last one: a gradient of each value that has one, from the first operator
/// that gives it to the one that made the value, and once more as much as results and gradients for
/// what an operator needs meanwhile. A last result of several elements is taken for what a loss
/// reads, which saves as much. Kernels' own buffers are not known.
/// Of a pipeline: a rank of `stage`, which takes `in_flight` forwards before the first one's
/// backward; the forward shown is of one micro-batch then.
/// With `offload` nothing is computed again: what is saved is moved to the host and comes back
/// (`OffloadScope`), as if copies took no time, and a layer holds its values until it ends.
StepProfile forecast_step(const MemoryTape& tape, const std::vector<std::string>& names,
                          const StepBase& base, int stage = 0, int in_flight = 1,
                          const OffloadOptions* offload = nullptr);

}  // namespace oslo
