#pragma once

#include <memory>

#include "oslo_cpp/config/config_values.h"
#include "parallelizers/memory/budget/segment_budget.h"
#include "parallelizers/memory/recompute/layer_segments.h"
#include "parallelizers/modules/model_view.h"

namespace oslo {

/// The bytes that a rank may hold in a step: the config's 'activation_checkpoint.memory', or, where
/// activations are computed again, InitializeOptions::memory_limit; 0: there is no budget.
int64_t memory_budget(const ConfigValues& values, int64_t memory_limit);

/// What keeps it for these segments of a model whose parameters are this rank's parts already. The
/// thread's memory is counted from now on.
std::shared_ptr<SegmentBudget> segment_budget(int64_t bytes,
                                              const std::vector<SegmentLayers>& segments,
                                              const ModelView& model, at::Device device);

}  // namespace oslo
