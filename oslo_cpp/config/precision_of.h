#pragma once

#include <c10/core/Device.h>

#include "mpu/group/group.h"
#include "oslo_cpp/config/config_values.h"
#include "parallelizers/placement/layout/precision.h"

namespace oslo {

/// What a config's `amp`, `master_weights` and `reduce_dtype` come to.
Precision precision_of(const ConfigValues& values);

/// Throws where LibTorch has no autocast for the device that the model is on.
void check_precision(const Precision& precision, c10::Device device);

/// Gradients are averaged over the group `data` in a narrower type where the config asks for it.
void set_travel_type(Group& data, const Precision& precision);

}  // namespace oslo
