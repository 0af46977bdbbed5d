#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <torch/nn/module.h>

#include <typeinfo>

#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// Patterns over module paths, each with a style ("column") or one an axis ("row: row; column:
/// column", see style.h); `*` stands for one path component. A more
/// specific pattern (fewer stars) wins over a less specific one, the later over the earlier.
/// Throws when a pattern matches no layer, naming the nearest path.
using PlanPatterns = std::vector<std::pair<std::string, std::string>>;
void plan_by_patterns(std::vector<LayerPlan>& layers, const PlanPatterns& patterns);

/// What one module class wants of the layers inside it: paths relative to the module.
struct Policy {
  std::string class_name;
  std::function<bool(const torch::nn::Module&)> applies;
  PlanPatterns patterns;
};

/// A policy for every module of class `M` (an Impl), e.g.
/// `policy_for<AttentionImpl>({{"qkv", "column blocks=3"}, {"out", "row"}})`.
template <typename M>
Policy policy_for(PlanPatterns patterns) {
  return {
      c10::demangle(typeid(M).name()),
      [](const torch::nn::Module& module) { return dynamic_cast<const M*>(&module) != nullptr; },
      std::move(patterns)};
}

/// Throws when a layer cannot be cut as a pattern or a policy asks. Call it after all of them: a
/// broad pattern may not fit a layer that a more specific one plans otherwise. Throws as well when
/// they name an axis that is not among `axes`, or none where `axes` has no searched one.
void check_asked(std::vector<LayerPlan>& layers, const PlanAxes& axes = 1);

/// Throws when a policy finds no module of its class, or a module lacks a layer that it names.
void plan_by_policies(std::vector<LayerPlan>& layers, const ModelView& model,
                      const std::vector<Policy>& policies);

}  // namespace oslo
