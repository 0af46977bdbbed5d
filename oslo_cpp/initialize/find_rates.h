#pragma once

#include <c10/core/Device.h>

#include <string>

#include "mpu/grid/mpu.h"
#include "parallelizers/plan/dry/rates.h"

namespace oslo {

/// The rates by which all ranks plan: rank 0's. Those in the file `named`, else in the file that
/// OSLO_RATES names, else those kept for this machine, else measured now and kept, which rank 0
/// says in a line on its standard error (OSLO_MEASURE=1: measured anew). Ranks that are neither
/// processes of a launcher nor those of `oslo plan` take a named file or nominal rates. Collective
/// over the world. Throws on every rank when a named file cannot be read.
Rates find_rates(const MPU& mpu, Transport transport, c10::Device device, const std::string& named);

}  // namespace oslo
