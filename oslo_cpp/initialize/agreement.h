#pragma once

#include <ATen/core/Generator.h>

#include <vector>

#include "mpu/grid/rank_grid.h"
#include "mpu/world/world.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// What ranks that were never seeded take from another one. LibTorch in C++ starts its generator at
/// random, with 64 bits, so no rank was seeded where no generator's seed is below 2^40.
struct TakenFromFirst {
  bool weights = false;  ///< all ranks those of rank 0: parameters and buffers
  bool states = false;   ///< the ranks of one copy of the model its first rank's random states

  bool any() const { return weights || states; }
};

/// Throws on every rank unless all have the same model: names, shapes and dtypes on all ranks; the
/// values of parameters and buffers, and the states of `generators`, between the ranks that will
/// share one copy of the model, as they draw the same masks and the same initial values (data
/// replicas may differ: DistributedDataParallel broadcasts). Names the first difference. Ranks that
/// are threads of one process and share a generator are not compared by its state.
///
/// Where no rank was seeded, values may differ, and states of other seeds: that is what is
/// returned, the same on every rank. A difference behind equal seeds, where one rank drew more,
/// stays an error.
TakenFromFirst agree_on_model(const World& world, const RankGrid& grid, const ModelView& model,
                              const std::vector<at::Generator>& generators);

/// Throws on every rank unless the parameters and buffers are the same on all ranks.
void agree_on_values_everywhere(const World& world, const ModelView& model);

}  // namespace oslo
