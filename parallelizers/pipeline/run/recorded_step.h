#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/pipeline/schedule/timeline/recorder.h"

namespace oslo {

// What ranks of different pipeline stages tell each other so that their recorders make one
// timeline. Each is collective over `stages`.

/// A moment that is the same for all ranks of one host; between hosts, each rank's own behind a
/// barrier, which differs by what a message takes. Two small collectives.
pipeline::Recorder::Clock::time_point common_start(Group& stages);

/// What each of them noted, on every rank. Two small collectives.
pipeline::Timeline gathered(Group& stages, const pipeline::Timeline& own);

/// A message, told apart into waiting for it and moving it where `recorder` is not null.
std::vector<at::Tensor> receive_recorded(Group& group, int from, int tag,
                                         c10::ArrayRef<at::Tensor> like,
                                         pipeline::Recorder* recorder);

}  // namespace oslo
