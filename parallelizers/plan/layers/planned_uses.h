#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "parallelizers/placement/layout/weight_uses.h"
#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// Throws when a layer has no such result or input as its pattern places.
void check_use(const LayerPlan& layer);

/// Whether the search has this layer's partial sum join others (search/joined_sums.h).
bool joins_sum(const LayerPlan& layer);

/// Whether the plan says how this layer's result or input lies, on some axis.
bool says_use(const LayerPlan& layer);

/// What a plan says of the uses of its weights, by weight; empty where no layer says anything.
/// Where one says how its result lies, values between layers are cut, and beside every planned
/// weight the input is what moves. A weight that several layers share has what each says of its own
/// kind of use.
using PlannedUses = std::map<const c10::TensorImpl*, std::shared_ptr<const WeightUses>>;
PlannedUses planned_uses(const std::vector<LayerPlan>& layers, const Mesh& mesh);

}  // namespace oslo
