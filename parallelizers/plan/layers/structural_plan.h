#pragma once

#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// A plan without a policy, from names and shapes alone (Megatron-LM's scheme): linear layers by
/// column; by row where the name is that of a second projection; in three blocks where name and
/// shape say query-key-value; embeddings by vocabulary, except tables of positions or types, which
/// are small, as are convolutions over the patches of an image; MultiheadAttention by heads; other
/// convolutions by output channels. A wrong guess costs a gather, never a wrong number; the report
/// names it. Where several axes cut layers and none of them is named "tensor", all of that is the
/// patterns' to say, and layers stay whole.
void plan_by_structure(std::vector<LayerPlan>& layers);

}  // namespace oslo
