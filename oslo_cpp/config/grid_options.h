#pragma once

#include <vector>

#include "mpu/grid/mpu.h"
#include "oslo_cpp/config/config.h"

namespace oslo {

/// The grid of ranks: of named axes, where there are any, else of the config's sizes. Throws where
/// both say something.
MpuOptions grid_options(const ParallelSizes& sizes, const Config& config,
                        const std::vector<Axis>& axes);

}  // namespace oslo
