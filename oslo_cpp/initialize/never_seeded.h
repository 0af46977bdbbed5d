#pragma once

#include <ATen/core/Generator.h>

#include <string>
#include <vector>

#include "mpu/grid/mpu.h"
#include "oslo_cpp/initialize/agreement.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Takes what `agree_on_model` found: rank 0's parameters and buffers, in place, and the random
/// states of the copy's first rank. Of a model under `DeferredInit` the recorded draws begin where
/// rank 0's do. What an earlier initialize cut stays: its ranks have agreed. Throws on every rank
/// where values differ even so. The next comparisons of OSLO_CHECK are made then, as the ranks of a
/// copy drew apart until here. Collective over the world.
void take_from_first(const TakenFromFirst& taken, const MPU& mpu, const ModelView& model,
                     std::vector<at::Generator> generators);

/// What rank 0 says of it on the standard error, in one line.
std::string told_of(const TakenFromFirst& taken);

}  // namespace oslo
