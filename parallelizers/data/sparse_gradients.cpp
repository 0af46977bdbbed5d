#include "parallelizers/data/sparse_gradients.h"

#include <torch/nn/modules/embedding.h>

#include <string>

#include "mpu/error.h"

namespace oslo {

void refuse_sparse_gradients(const torch::nn::Module& module) {
  const auto refuse = [](const std::string& name, const torch::nn::Module& layer) {
    const auto* embedding = layer.as<torch::nn::EmbeddingImpl>();
    const auto* bag = layer.as<torch::nn::EmbeddingBagImpl>();
    const bool sparse = (embedding != nullptr && embedding->options.sparse()) ||
                        (bag != nullptr && bag->options.sparse());
    OSLO_CHECK(!sparse, "DistributedDataParallel exchanges dense gradients, and ", name,
               " is an embedding with sparse(true); make it with sparse(false)");
  };
  refuse("the model", module);
  for (const auto& entry : module.named_modules("", /*include_self=*/false)) {
    refuse(entry.key(), *entry.value());
  }
}

}  // namespace oslo
