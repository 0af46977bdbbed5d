#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// What cutting the stream between layers along the sequence costs and gains.
struct SequencePlan {
  DryCost before, after;
  int64_t runs = 0;  ///< dry runs it took
};

/// Lets the stream that runs between the layers of a finished plan lie cut along the sequence over
/// `axes.searched` (Megatron-LM's sequence parallelism, arXiv 2205.05198): the results of row
/// layers and of embeddings by vocabulary are reduce-scattered, those of whole embeddings split.
/// Everything else follows from the layouts. What patterns say of a layer's results stays.
///
/// The sequence is found by runs of the example on shapes: the last dimension but one of a result,
/// [batch, sequence, features], or the third from the end, [sequence, batch, features]. Embeddings,
/// the layers of LibTorch's MultiheadAttention and all others may differ in it, as programs turn
/// their streams behind an embedding, or for attention. Taken is the first stream of those that
/// need the fewest gathers, keep fewer bytes for backward than the plan did, and move at most twice
/// as many; where there is none, what goes role by role, without gathers. A layer that is left out
/// says so in its `why`. Branches that end in one sum are scattered together (joined_sums.h).
///
/// Deterministic: every rank finds the same. Throws a config error where no layer's result can be
/// cut, and what the example throws.
SequencePlan cut_along_sequence(std::vector<LayerPlan>& layers, const ModelView& model,
                                const PlanAxes& axes, const std::function<void()>& example,
                                const Rates& rates);

}  // namespace oslo
