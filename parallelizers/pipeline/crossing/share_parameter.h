#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

/// Gives the ranks of `stages` a copy of a parameter or buffer from the first stage that has it,
/// where they have none; ranks of no such stage let theirs go. Nothing where it lies on `stages`
/// already. Collective over the pipeline.
void share_parameter(const at::Tensor& parameter, StageSet stages);

}  // namespace oslo
