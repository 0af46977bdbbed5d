#include "parallelizers/data/sparse_gradients.h"

#include <torch/nn/modules/embedding.h>

#include <string>

#include "mpu/base/error.h"

namespace oslo {

void refuse_sparse_gradients(const ModelView& model) {
  for (const ModuleView& entry : model.modules()) {
    if (!entry.module) continue;
    const auto* embedding = entry.module->as<torch::nn::EmbeddingImpl>();
    const auto* bag = entry.module->as<torch::nn::EmbeddingBagImpl>();
    const bool sparse = (embedding != nullptr && embedding->options.sparse()) ||
                        (bag != nullptr && bag->options.sparse());
    OSLO_CHECK(!sparse, "DistributedDataParallel exchanges dense gradients, and ",
               entry.path.empty() ? "the model" : entry.path,
               " is an embedding with sparse(true); make it with sparse(false)");
  }
}

}  // namespace oslo
