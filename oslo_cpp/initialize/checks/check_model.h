#pragma once

#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Throws when an earlier initialize cut some of the model's parameters over other ranks, or
/// computes with them in other types.
void check_decided_over(const ModelView& model, const ContextPtr& context);

/// Throws where a module of the model runs on one pipeline stage only.
void check_takes_stages(const ModelView& model);

}  // namespace oslo
