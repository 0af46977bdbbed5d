#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

#include "mpu/rank_grid.h"
#include "mpu/world.h"

namespace oslo {

/// Runs `prepare` on this rank and tells the others how it went, over the store: if it threw
/// anywhere, every rank throws what the first such rank said. So a mistake ends a job soon, on all
/// ranks, and before any of them waits in a collective.
void agree_on_success(const World& world, const std::string& topic,
                      const std::function<void()>& prepare);

/// Throws on every rank when `text` is not the same on all, naming two ranks and the first line in
/// which they differ. `what` is it, `fix` what to do then.
void agree_on_text(const World& world, const std::string& what, const std::string& text,
                   const std::string& fix);

/// The same for models: names, shapes and dtypes on all ranks; the values of parameters and buffers
/// between the ranks that will share one copy of the model (data replicas may differ:
/// DistributedDataParallel broadcasts).
void agree_on_model(const World& world, const RankGrid& grid, const torch::nn::Module& model);

/// The same for the states of generators, between the ranks that will share one copy of the model:
/// they draw the same masks and the same initial values. Ranks that are threads of one process and
/// share a generator are not compared.
void agree_on_generators(const World& world, const RankGrid& grid,
                         const std::vector<at::Generator>& generators);

}  // namespace oslo
