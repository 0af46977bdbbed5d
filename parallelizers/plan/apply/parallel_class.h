#pragma once

#include <string>

#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// The class of oslo::nn that a layer cut by this plan works as ("oslo::nn::ColumnParallelLinear"),
/// for plans to show. The layer keeps its object and its class: what it computes with decides.
/// Empty where none is cut so: of other kinds of layers, of a weight that several styles cut, and
/// of one that stays whole.
std::string parallel_class(const LayerPlan& layer);

}  // namespace oslo
