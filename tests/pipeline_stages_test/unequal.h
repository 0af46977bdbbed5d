#pragma once

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "parallelizers/stages/balance.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

// What tests of balanced stages share: all cuts that there are, and a model of unequal layers.
namespace oslo::test {

/// A stage for each unit, or layer.
using Ids = std::vector<int>;

/// The least that `judge` says of a cut of `units` into `stages`, of all contiguous ones.
inline double least_of_cuts(int units, int stages, const std::function<double(const Ids&)>& judge,
                            Ids ids = {0}) {
  if (std::ssize(ids) == units) {
    return ids.back() == stages - 1 ? judge(ids) : std::numeric_limits<double>::infinity();
  }
  double least = std::numeric_limits<double>::infinity();
  for (const int next : {ids.back(), ids.back() + 1}) {
    if (next >= stages) continue;
    Ids more = ids;
    more.push_back(next);
    least = std::min(least, least_of_cuts(units, stages, judge, more));
  }
  return least;
}

/// Costs of single units.
inline std::vector<UnitCost> alone(const std::vector<double>& costs) {
  std::vector<UnitCost> found;
  for (size_t i = 0; i < costs.size(); ++i) {
    found.push_back({StageSet::of(static_cast<int>(i)), costs[i]});
  }
  return found;
}

/// Eight blocks; the first two are far wider than the others.
struct UnequalImpl : torch::nn::Module {
  UnequalImpl() {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 8; ++i) {
      const int64_t wide = i < 2 ? 768 : 64;
      layers->push_back(torch::nn::Sequential(torch::nn::Linear(32, wide), torch::nn::GELU(),
                                              torch::nn::Linear(wide, 32)));
    }
    head = register_module("head", torch::nn::Linear(32, 5));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Sequential>()->forward(x);
    return head(x);
  }
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Unequal);

inline Plan plan_of(const std::string& config, int pipeline, bool example = true) {
  Plan plan;
  run_as_threads(pipeline, [&](World world) {
    auto model = make_seeded(1, [] { return Unequal(); });
    auto how = in(world);
    if (example) how.example_inputs = [&] { model->forward(torch::zeros({64, 32})); };
    const ParallelModel parallel = initialize(model, Config::parse(config), how);
    if (world.rank() == 0) plan = parallel.plan();
  });
  return plan;
}

inline Ids actual_stages(const Plan& plan) {
  Ids ids;
  for (const PlanLayer& layer : plan.pipeline.layers) ids.push_back(layer.actual_stage);
  return ids;
}

}  // namespace oslo::test
