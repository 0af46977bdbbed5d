#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "mpu/grid/mpu.h"
#include "oslo_cpp/config/config_values.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Where the model's parameters are; the CPU where it has none.
c10::Device device_of(const ModelView& model);

/// What the values of a model on `device` share.
std::shared_ptr<ModelContext> make_context(const MPU& mpu, c10::Device device,
                                           const ConfigValues& values);

/// Has DistributedDataParallel throw where the config divides batches: its micro-batches are those
/// of a PipelineSchedule, and DistributedDataParallel has none.
void refuse_undivided_batches(const MPU& mpu, const ConfigValues& values);

}  // namespace oslo
