#pragma once

#include "parallelizers/modules/model_view.h"

namespace oslo {

/// Throws, naming it, when a layer of `model` makes sparse gradients.
void refuse_sparse_gradients(const ModelView& model);

}  // namespace oslo
