#pragma once

#include <c10/core/Device.h>

#include <string>
#include <utility>
#include <vector>

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// A parameter's name and device.
using NamedDevice = std::pair<std::string, c10::Device>;

/// Throws unless all of them are on one device, and that is `current`, this rank's, where it is
/// none of the CPU. Shapes without content (meta) are on none.
void check_devices(const std::vector<NamedDevice>& parameters, c10::Device current);

/// The same for a model on this rank. Buffers may stay on the CPU: LibTorch's operators take single
/// numbers from there.
void check_devices(const ModelView& model);

}  // namespace oslo
