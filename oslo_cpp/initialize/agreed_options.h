#pragma once

#include <string>
#include <vector>

#include "mpu/grid/mpu.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/initialize/initialize.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// What ranks must agree on beside the config; without an example on one rank, the others would
/// wait for it.
std::string options_text(const InitializeOptions& options, const ModelView& model);

/// Of named axes, where there are any, else of the config's sizes.
MpuOptions grid_options(const ParallelSizes& sizes, const Config& config,
                        const std::vector<Axis>& axes);

}  // namespace oslo
