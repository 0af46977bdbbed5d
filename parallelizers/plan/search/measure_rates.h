#pragma once

#include <c10/core/Device.h>

#include "mpu/group/group.h"
#include "parallelizers/plan/dry/rates.h"

namespace oslo {

/// What a thread of this process takes for operators on `device`, in about half a second. Leaves
/// the random generators as they are. All but `collective`, which needs a group.
Rates measure_operators(c10::Device device);

/// What an all-reduce over the group takes, in about half a second. Collective over it; every rank
/// measures the same calls and the figures are rank 0's own. Counted in no ledger: call it with a
/// group of its own.
RateCurve measure_collective(Group& group, c10::Device device);

/// The words that rates of this process's machine are kept under: processor, instruction set, the
/// GPU's name where `device` is one, LibTorch, threads, and what carries the collectives of how
/// many ranks.
std::string machine_text(c10::Device device, const std::string& transport, int ranks);

}  // namespace oslo
