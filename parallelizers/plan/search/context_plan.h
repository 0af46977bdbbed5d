#pragma once

#include <functional>
#include <vector>

#include "parallelizers/placement/layout/sequence_attention.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// Cuts the sequence over the axis "context" of a grid that has one (context parallelism:
/// Megatron-LM's, and Colossal-AI's mode "sequence", arXiv 2105.13120): every weight is whole,
/// look-ups take this rank's part of the indices, and where no look-up begins the forward the first
/// layers that a value meets take their part of it. Everything else follows from the layouts;
/// attention brings the keys and values together (rules/matrix/attention.cpp).
///
/// Which dimension is the sequence is found by runs of the example on shapes: of indices the last
/// ([batch, sequence]), else the one before it; of the inputs of other layers the last but one
/// ([batch, sequence, features]), else the one before that. The choice that keeps the fewest bytes
/// for backward is taken. Without an example, or where it cannot be run on shapes, look-ups take
/// the last dimension. Where patterns or policies say of any layer how it lies over "context", they
/// say all of it.
///
/// `order` says which positions a rank has.
///
/// Deterministic: every rank finds the same. Throws a config error where nothing can be cut.
void cut_context(std::vector<LayerPlan>& layers, const ModelView& model, const PlanAxes& axes,
                 const std::function<void()>& example, const Rates& rates, SequenceOrder order);

}  // namespace oslo
