#pragma once

#include <ATen/core/Tensor.h>

#include "mpu/stage_set.h"

namespace oslo {

/// Gives the ranks of `stages`, which hold those that do already, a copy of a parameter or buffer
/// from the first stage that has it. Nothing where they all have it. Collective over the stages.
void share_parameter(const at::Tensor& parameter, StageSet stages);

}  // namespace oslo
