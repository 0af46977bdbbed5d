#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <vector>

#include "mpu/group/group.h"

namespace oslo {

/// At the beginning of a step, where `checks_ranks()`: throws on every rank of `copy`, the ranks of
/// one copy of the model, where they were given different batches, or where their generators (those
/// that operators draw from unless told) are in different states, so that they would draw different
/// masks. A few small collectives; nothing otherwise, and at size 1.
void check_step(const std::vector<at::Tensor>& batch, const std::vector<at::Generator>& generators,
                Group& copy);

}  // namespace oslo
