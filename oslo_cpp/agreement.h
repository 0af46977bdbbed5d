#pragma once

#include <ATen/core/Generator.h>

#include <vector>

#include "mpu/rank_grid.h"
#include "mpu/world.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Throws on every rank unless all have the same model: names, shapes and dtypes on all ranks; the
/// values of parameters and buffers between the ranks that will share one copy of the model (data
/// replicas may differ: DistributedDataParallel broadcasts). Names the first difference.
void agree_on_model(const World& world, const RankGrid& grid, const ModelView& model);

/// The same for the states of generators, between the ranks that will share one copy of the model:
/// they draw the same masks and the same initial values. Ranks that are threads of one process and
/// share a generator are not compared.
void agree_on_generators(const World& world, const RankGrid& grid,
                         const std::vector<at::Generator>& generators);

}  // namespace oslo
