#include "parallelizers/data/module_parameters.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <unordered_set>

#include "mpu/error.h"

namespace oslo {
namespace {

/// What forward uses in place of the registered parameter `name`.
at::Tensor in_use(const torch::nn::Module& module, const std::string& name, at::Tensor registered) {
  at::Tensor member;
  if (const auto* linear = module.as<torch::nn::LinearImpl>()) {
    member = name == "weight" ? linear->weight : name == "bias" ? linear->bias : member;
  } else if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    member = name == "weight" ? embedding->weight : member;
  }
  return member.defined() && member.is_leaf() ? member : registered;
}

void collect(const torch::nn::Module& module, const std::string& prefix,
             std::unordered_set<const c10::TensorImpl*>& seen, std::vector<NamedTensor>& found) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    at::Tensor tensor = in_use(module, parameter.key(), parameter.value());
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    found.push_back({prefix + parameter.key(), std::move(tensor)});
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", seen, found);
  }
}

}  // namespace

std::vector<NamedTensor> parameters_in_use(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<NamedTensor> found;
  collect(module, "", seen, found);
  return found;
}

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
