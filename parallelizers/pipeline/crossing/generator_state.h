#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "mpu/group/group.h"
#include "parallelizers/placement/residency/stage_ranks.h"

namespace oslo {

// A generator's state is a tensor of bytes on the CPU: 5 KB of a CPU's generator, 16 bytes of a
// GPU's. Both hold the generator's lock meanwhile.
at::Tensor state_of(const at::Generator& generator);
void set_state(at::Generator generator, const at::Tensor& state);

/// One message with the state to each rank of `stages` that has none of `owners`.
void send_state(const at::Generator& generator, Group& stages, const StageRanks& ranks,
                StageSet owners, int tag);

}  // namespace oslo
