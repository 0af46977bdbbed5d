#include "oslo_cpp/initialize/memory/optimizer_bytes.h"

#include <torch/optim.h>

#include <algorithm>
#include <numeric>

namespace oslo {
namespace {

/// How many numbers there are for each of a parameter: of all, and of the one that is stepped.
struct Copies {
  int64_t states = 2, temporaries = 3;
};

template <typename Options>
const Options* options_of(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  const torch::optim::OptimizerOptions& options =
      groups.empty() ? optimizer.defaults() : groups.front().options();
  return dynamic_cast<const Options*>(&options);
}

Copies copies_of(const torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (const auto* sgd = options_of<optim::SGDOptions>(optimizer)) {
    return {sgd->momentum() != 0 ? 1 : 0, sgd->weight_decay() != 0 || sgd->nesterov() ? 1 : 0};
  }
  if (const auto* adam = options_of<optim::AdamOptions>(optimizer)) {
    return {adam->amsgrad() ? 3 : 2, adam->weight_decay() != 0 ? 3 : 2};
  }
  if (const auto* adam = options_of<optim::AdamWOptions>(optimizer)) {
    return {adam->amsgrad() ? 3 : 2, 2};
  }
  if (const auto* rmsprop = options_of<optim::RMSpropOptions>(optimizer)) {
    return {1 + (rmsprop->momentum() > 0 ? 1 : 0) + (rmsprop->centered() ? 1 : 0), 3};
  }
  if (options_of<optim::AdagradOptions>(optimizer) != nullptr) return {1, 3};
  if (const auto* lbfgs = options_of<optim::LBFGSOptions>(optimizer)) {
    return {2 * lbfgs->history_size() + 4, 0};
  }
  return {};
}

}  // namespace

OptimizerBytes optimizer_bytes(const torch::optim::Optimizer* optimizer,
                               const std::vector<int64_t>& parameters) {
  const Copies copies = optimizer == nullptr ? Copies{} : copies_of(*optimizer);
  const int64_t all = std::accumulate(parameters.begin(), parameters.end(), int64_t{0});
  const auto largest = std::max_element(parameters.begin(), parameters.end());
  return {copies.states * all, largest == parameters.end() ? 0 : copies.temporaries * *largest};
}

}  // namespace oslo
